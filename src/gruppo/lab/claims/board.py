"""Results of claims, in claims/results/NAME.json: written once for a rule, and shown on the board."""

import json
import math
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gruppo.lab.claims.claim import Claim
from gruppo.lab.claims.gates import NO_REGIME, recomputed
from gruppo.lab.claims.verdict import Judged, of_values, together
from gruppo.lab.compare.compare import Result
from gruppo.train.estimates import mean_interval
from gruppo.train.folder import finite

CURVES = ("held_out", "entropy", "length", "reward", "right_entropy")
FIELDS = ("rule", "verdict", "commit", "date", "seeds", "arms", "conditions", "seconds", "curves")  # that are read
ARMS = ("entrant", "baseline")


def path_of(folder: Path, name: str) -> Path:
    return folder / "results" / f"{name}.json"


def verdicts(folder: Path, claims: Mapping[str, Claim]) -> dict[str, str]:
    """The verdict of each claim; "not run" where there is none yet."""
    return {n: found["verdict"] if (found := load(folder, c)) else "not run" for n, c in claims.items()}


def load(folder: Path, claim: Claim) -> dict[str, Any] | None:
    """The result of a claim, if there is one. Refused if it was judged by another rule, since a rule is not changed
    after the fact, or if its verdict does not follow from its own values."""
    path = path_of(folder, claim.name)
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        _ = [found[key] for key in FIELDS]
        written = [c["holds"] for c in found["conditions"]]
        values = [[[math.inf if v is None else v for v in c[arm]] for arm in ARMS] for c in found["conditions"]]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no result of a claim: {error!r}. Take it back from git, or delete it.") from None
    if found["rule"] != claim.rule:
        raise ValueError(
            f"{path} was judged by the rule {found['rule']}, and {claim.name}.toml now says {claim.rule}: a rule is "
            "fixed before its runs. Take the change back; or, for a new claim, delete the result and say in `note` why."
        )
    opened = recomputed(claim, found.get("gates", []))
    if opened is None or opened != [g["holds"] for g in found.get("gates", [])]:
        raise ValueError(
            f"{path}: its gates are not those of the rule, or do not follow from their own values. It was changed by "
            "hand: take it back from git, or delete it."
        )
    wanted = claim.conditions if all(opened) else ()
    now = [of_values(c, *v).holds for c, v in zip(wanted, values, strict=False)]
    outcome = together(now) if all(opened) else NO_REGIME
    if (found["verdict"], written) != (outcome, now) or len(now) < len(wanted):
        raise ValueError(
            f"{path} says {found['verdict']!r} ({', '.join(written)}); by its own values and the rule it is "
            f"{outcome!r} ({', '.join(now)}). It was changed by hand: take it back from git, or delete it."
        )
    return found


def committed(path: Path) -> str:
    """The current commit; refused unless it holds the claim's file as it is."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=path.parent, capture_output=True, text=True, check=True).stdout

    try:
        there, here = git("ls-tree", "HEAD", "--", path.name), git("hash-object", "--", path.name).strip()
        commit = git("rev-parse", "HEAD").strip()
    except (OSError, subprocess.CalledProcessError):
        raise ValueError(
            f"{path} is in no git repository, so it cannot be shown that its rule was there before the runs. Commit it."
        ) from None
    if here not in there.split():
        raise ValueError(
            f"{path} is not committed as it is: a rule is fixed before the seeds from 0 on are run. Commit it first; "
            "try things out with --pilot, which takes other seeds."
        )
    return commit


def result(
    claim: Claim,
    outcome: str,
    judged: Sequence[Judged],
    runs: Mapping[str, Sequence[Result]],
    commit: str,
    gates: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The result file: everything that a reader needs to check the verdict."""
    every = [r for results in runs.values() for r in results]
    return {
        "claim": claim.name,
        "rule": claim.rule,
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
        "verdict": outcome,
        "seeds": [r.seed for r in runs.get("baseline", ())],
        "arms": claim.arms,
        "settings": list(claim.settings),
        "conditions": [asdict(j.condition) | {k: v for k, v in asdict(j).items() if k != "condition"} for j in judged],
        **({"gates": list(gates)} if gates else {}),
        "seconds": sum(r.seconds for r in every),
        "cores": os.cpu_count(),
        "curves": {arm: _curves(results) for arm, results in runs.items()},
    }


def _curves(results: Sequence[Result]) -> dict[str, dict[str, list[float]]]:
    """{metric: {step, mean, low, high}}, over seeds."""
    out: dict[str, dict[str, list[float]]] = {}
    for metric in CURVES:
        curves = [r.curve(metric) for r in results]
        steps = sorted(set(curves[0]).intersection(*curves[1:])) if curves else []
        spread = [mean_interval([c[s] for c in curves]) for s in steps]
        if steps:
            out[metric] = {
                "step": [float(s) for s in steps],
                "mean": [round(i.mean, 5) for i in spread],
                "low": [round(i.low, 5) for i in spread],
                "high": [round(i.high, 5) for i in spread],
            }
    return out


def write(folder: Path, body: Mapping[str, Any]) -> Path:
    return _written(path_of(folder, body["claim"]), body)


def pilots_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """The pilot runs of a claim that are stored, the oldest first."""
    path = folder / "pilots" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))["pilots"] if path.is_file() else []


def keep_pilot(folder: Path, name: str, made: Mapping[str, Any]) -> Path:
    """Store a pilot with its values, after those that are there: none is ever replaced."""
    body = {"claim": name, "pilots": [*pilots_of(folder, name), dict(made)]}
    return _written(folder / "pilots" / f"{name}.json", body)


def _written(path: Path, body: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(finite(dict(body)), indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)
    return path
