"""Results of claims, in claims/results/NAME.json: written once for a rule, and shown on the board."""

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gruppo.lab.claims import ledger
from gruppo.lab.claims.claim import Claim
from gruppo.lab.claims.recheck import CURVES, deviations
from gruppo.lab.claims.verdict import Judged
from gruppo.lab.compare.compare import Result
from gruppo.train.estimates import mean_interval
from gruppo.train.folder import finite

FIELDS = (  # that are read
    "claim", "rule", "verdict", "commit", "date", "seeds", "arms", "settings", "conditions", "seconds", "curves",
)  # fmt: skip


def path_of(folder: Path, name: str) -> Path:
    return ledger.file_of(folder, "result", name)


def verdicts(folder: Path, claims: Mapping[str, Claim]) -> dict[str, str]:
    """The verdict of each claim; "not run" where there is none yet."""
    return {n: found["verdict"] if (found := load(folder, c)) else "not run" for n, c in claims.items()}


def load(folder: Path, claim: Claim) -> dict[str, Any] | None:
    """The result of a claim, if there is one. Refused if it was judged by another rule, since a rule is not changed
    after the fact, if anything in it does not follow from its own values, or if it is not as its runs left it."""
    path = path_of(folder, claim.name)
    if not path.is_file():
        return None
    data, pilots = path.read_bytes(), pilots_of(folder, claim.name)
    try:
        found = json.loads(data)
        _ = [found[key] for key in FIELDS]
        wrong = [] if found["rule"] != claim.rule else list(deviations(claim, found, pilots))
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ValueError(f"{path} is no result of a claim: {error!r}. Take it back from git, or delete it.") from None
    if found["rule"] != claim.rule:
        raise ValueError(
            f"{path} was judged by the rule {found['rule']}, and {claim.name}.toml now says {claim.rule}: a rule is "
            "fixed before its runs. Take the change back; or, for a new claim, delete the result and say in `note` why."
        )
    for field, said in wrong:
        raise ValueError(
            f"{path}: {field} {said}. It was changed by hand: take it back from git, or delete it, and run "
            f"gruppo claims {claim.name}."
        )
    ledger.refuse_changed(folder, "result", claim.name, data)
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
        "machine": machine(),
        "curves": {arm: _curves(results) for arm, results in runs.items()},
    }


def machine() -> dict[str, Any]:
    """Cores of the machine that judged, and its load average (of a minute) at the end."""
    load = {"load": round(os.getloadavg()[0], 2)} if hasattr(os, "getloadavg") else {}
    return {"cores": os.cpu_count(), **load}


def machine_in_words(result: Mapping[str, Any]) -> str:
    """Such as "2 cores, load 1.93 at the end"; empty for a result that is older than the field."""
    found = result.get("machine") or {}
    words = {"cores": "{} cores", "load": "load {} at the end"}
    return ", ".join(text.format(found[k]) for k, text in words.items() if found.get(k) is not None)


def _curves(results: Sequence[Result]) -> dict[str, dict[str, Any]]:
    """{metric: {step, mean, low, high}}, over seeds; `partly` if runs have steps that others have not."""
    out: dict[str, dict[str, Any]] = {}
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
                **({"partly": True} if any(len(c) != len(steps) for c in curves) else {}),
            }
    return out


def write(folder: Path, body: Mapping[str, Any]) -> Path:
    return _written(folder, "result", body)


def pilots_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """The pilot runs of a claim that are stored, the oldest first. Refused if they are not as they were stored."""
    data = ledger.read(folder, "pilot", name)
    if data is None:
        return []
    try:
        found = list(json.loads(data)["pilots"])
        for r in (r for p in found for r in p.get("runs", ())):
            _ = r["arm"], r["text"], r["setting"], [list(values) for values in r["values"].values()]
        return found
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        path = ledger.file_of(folder, "pilot", name)
        raise ValueError(f"{path} holds no pilots: {error!r}. Take it back from git, or delete it.") from None


def keep_pilot(folder: Path, name: str, made: Mapping[str, Any]) -> Path:
    """Store a pilot with its values, after those that are there: none is ever replaced."""
    return _written(folder, "pilot", {"claim": name, "pilots": [*pilots_of(folder, name), dict(made)]})


def _written(folder: Path, what: str, body: Mapping[str, Any]) -> Path:
    """The file, and its line in the ledger."""
    path = ledger.file_of(folder, what, body["claim"])
    path.parent.mkdir(parents=True, exist_ok=True)
    draft, data = path.with_suffix(".draft"), (json.dumps(finite(dict(body)), indent=1) + "\n").encode()
    draft.write_bytes(data)
    os.replace(draft, path)
    ledger.append(folder, what, body["claim"], data)
    return path
