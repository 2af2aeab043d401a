"""What the file of a claim must have before the seeds of its verdict are run. What is judged already stays as it is.

    [[gate]] and [[mechanism]]   pilot seeds show that the trouble is there, and that the method's lever moves
    sweep, or no_sweep           or the reason why no setting is tried for the arms
    [chosen]                     the best point of a stored pilot sweep, or not_best, the reason why another one

no_sweep and not_best are no part of the rule: they decide nothing.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gruppo.lab.claims.claim import PILOT_SEEDS, Claim


def refuse_unready(path: Path, claim: Claim, pilots: Sequence[Mapping[str, Any]] | None) -> None:
    """Raise for the first thing that is missing; without `pilots` (on a machine without the record) [chosen] is not
    looked at."""
    for said in (*lacks(claim), *(worse(claim, pilots) if pilots is not None else ())):
        raise ValueError(f"{path}: {said}")


def lacks(claim: Claim) -> Iterator[str]:
    """What is missing in the file."""
    if not claim.gates:
        yield (
            "it has no [[gate]], so a baseline that is not ill at all would count against the method. Add one with "
            "what pilot seeds must show of the baseline: measure, kind = 'at_least' or 'at_most', and size."
        )
    if not claim.mechanisms:
        yield (
            "it has no [[mechanism]], so a lever that never moves would count against the method. Add one with what "
            "pilot seeds must show of the entrant: measure, kind = 'at_least' or 'at_most', and size."
        )
    if not claim.sweep and not claim.no_sweep:
        yield (
            "it has no sweep, so one arm may have the better setting by chance. Add sweep = [at least four points], or "
            "no_sweep = 'the reason why none is needed'."
        )


def decided_by(claim: Claim) -> tuple[str, bool]:
    """The measure that chooses a point of the sweep, and whether it is the lower the better."""
    first = claim.conditions[0]
    lower = first.kind in ("lower", "at_most") or (first.kind == "not_worse" and first.better == "lower")
    return (claim.sweep_by, False) if claim.sweep_by else (first.measure, lower)


def worse(claim: Claim, pilots: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Arms of which [chosen] is not the best point of the newest stored pilot with their sweep."""
    measure, lower = decided_by(claim)
    for arm, setting in claim.chosen.items() if not claim.not_best else ():
        text = getattr(claim, arm)
        found = next((f for p in reversed(pilots) if (f := _points(claim, arm, text, measure, p))), None)
        again = f"gruppo claims {claim.name} --pilot"
        if found is None:
            yield (
                f"[chosen] of {arm} is {setting}, and no stored pilot has {measure} of {text!r} at every point of its "
                f"sweep with these settings, so nobody could see that it is the best. Run {again}; or give not_best = "
                "'the reason why it was chosen'."
            )
            return
        best = (min if lower else max)(found.values())
        if found.get(setting) != best:
            points = ", ".join(f"{s}: {v:.4g}" for s, v in found.items())
            yield (
                f"[chosen] of {arm} is {setting}, and by {measure}, the {'lower' if lower else 'higher'} the better, "
                f"the stored pilot has {points}. Choose {next(s for s, v in found.items() if v == best)}; or give "
                "not_best = 'the reason why not'."
            )


def _points(claim: Claim, arm: str, text: str, measure: str, pilot: Mapping[str, Any]) -> dict[str, float]:
    """{point: mean of the measure} of a pilot; empty unless it has every point of the sweep."""
    if pilot["settings"] != list(claim.settings) or pilot["seeds"] != list(PILOT_SEEDS):
        return {}
    means: dict[str, float] = {}
    for run in pilot["runs"]:
        if (run["arm"], run["text"]) == (arm, text) and measure in run["values"]:
            values = [math.inf if v is None else v for v in run["values"][measure]]
            means[run["setting"]] = sum(values) / len(values)
    return means if set(claim.swept(text)) <= set(means) else {}
