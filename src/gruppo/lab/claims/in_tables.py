"""Claims whose task is an exact world: all seeds of an arm are trained at once, in this process."""

import json
import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from gruppo.cli.overrides import apply
from gruppo.lab.claims.claim import Claim
from gruppo.lab.compare.compare import Result
from gruppo.lab.tabular import train_exact
from gruppo.lab.tabular.setup import TASK, setup_of
from gruppo.train.config import RunConfig


def in_exact_world(claim: Claim) -> bool:
    return f"task={TASK}" in claim.settings


def exact_runs(
    claim: Claim, arms: Mapping[str, Any], seeds: Sequence[int], folder: Path, quiet: bool
) -> dict[str, list[Result]]:
    """{arm: results, one per seed}. What was run with these settings is read from the folder."""
    for entrant in arms.values():
        if entrant.earlier:
            raise ValueError(
                f"{entrant.name!r} has several stages, and training in an exact world saves no policy that the next "
                f"could begin from. Give the arm one stage, or the claim another task than {TASK}."
            )
    return {arm: _arm(claim, entrant, list(seeds), folder, quiet) for arm, entrant in arms.items()}


def _arm(claim: Claim, entrant: Any, seeds: list[int], folder: Path, quiet: bool) -> list[Result]:
    typed = [*claim.settings, *entrant.settings]
    config = apply(RunConfig(), typed)
    key = sha256(json.dumps([typed, seeds]).encode()).hexdigest()[:12]
    path = folder / f"{entrant.slug[:80]}-{key}.json"
    if not path.is_file():
        done = train_exact(config.method, setup_of(config), seeds=seeds)
        if not quiet:
            print(f"{entrant.name}: {len(seeds)} seeds, {done.how}, {done.seconds:.0f} s of the processor", flush=True)
        body = {"typed": typed, "how": done.how, "why": done.why, "seconds": done.seconds}
        body |= {"rows": {str(s): done.rows(s) for s in seeds}}
        folder.mkdir(parents=True, exist_ok=True)
        # As Python writes it, with Infinity: a noise without bound is no missing value.
        path.with_suffix(".draft").write_text(json.dumps(body), encoding="utf-8")
        os.replace(path.with_suffix(".draft"), path)
    body = json.loads(path.read_text(encoding="utf-8"))
    each = body["seconds"] / len(seeds)
    return [Result(entrant.name, s, str(path), each, body["rows"][str(s)]) for s in seeds]
