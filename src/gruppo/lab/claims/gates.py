"""Gates: what pilot seeds must show before a verdict may be made.

    [[gate]]        of the baseline: it has the disease that the method is said to cure
    [[mechanism]]   of the method: its own lever moves

A gate holds if the mean of its measure over the pilot seeds reaches the size. If one does not hold, the task says
nothing about the claim, and the verdict is "no regime found": the seeds of the verdict are not run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from gruppo.lab.claims.measures import measure
from gruppo.stages.names import nearest

NO_REGIME = "no regime found"
KINDS = ("at_least", "at_most")
ARM = {"gate": "baseline", "mechanism": "entrant"}


@dataclass(frozen=True)
class Gate:
    """The mean of a measure over pilot seeds is at least, or at most, this size."""

    measure: str
    kind: Literal["at_least", "at_most"]
    size: float

    def __post_init__(self) -> None:
        measure(self.measure)
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r}{nearest(str(self.kind), KINDS)}: use one of {', '.join(KINDS)}.")
        if not np.isfinite(self.size):
            raise ValueError(f"size = {self.size}: no run could show it. Give a finite size.")

    def holds(self, values: Sequence[float]) -> bool:
        mean = float(np.mean(values)) if len(values) else float("nan")
        return mean >= self.size if self.kind == "at_least" else mean <= self.size


def gates_of(claim: Any) -> list[tuple[str, Gate]]:
    """(gate or mechanism, gate) of a claim, in the order of its file."""
    return [("gate", g) for g in claim.gates] + [("mechanism", g) for g in claim.mechanisms]


def passed(claim: Any, runs: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every gate with its values on pilot seeds; `runs`: {arm: results}."""
    out: list[dict[str, Any]] = []
    for what, gate in gates_of(claim):
        read, results = measure(gate.measure), runs[ARM[what]]
        values = [read(r.rows) for r in results]
        if any(v != v for v in values):
            seeds = ", ".join(str(r.seed) for r, v in zip(results, values, strict=True) if v != v)
            raise ValueError(
                f"claim {claim.name}: {gate.measure} of the {ARM[what]} has no value with seed {seeds}, so nobody can "
                f"say whether the {what} holds. Measure something that every run has, such as last(held_out)."
            )
        held = {"what": what, "arm": ARM[what], **asdict(gate), "seeds": [r.seed for r in results]}
        out.append(held | {"values": values, "holds": gate.holds(values)})
    return out


def recomputed(claim: Any, written: Sequence[Mapping[str, Any]]) -> list[bool] | None:
    """Whether each gate holds, by the values in a result; None if these are not the gates of the claim."""
    wanted = [{"what": what, "arm": ARM[what], **asdict(gate)} for what, gate in gates_of(claim)]
    if [{k: w.get(k) for k in want} for w, want in zip(written, wanted, strict=False)] != wanted:
        return None
    if len(written) != len(wanted):
        return None
    values = [[float("inf") if v is None else v for v in w["values"]] for w in written]
    return [gate.holds(v) for (_, gate), v in zip(gates_of(claim), values, strict=True)]
