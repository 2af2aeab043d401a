"""From the values of the seeds to a verdict, by the rule of the claim.

reproduced       every condition holds
not reproduced   at least one is excluded: its interval does not reach the size that was claimed
inconclusive     neither
no regime found  a gate did not hold on pilot seeds, so that nothing was judged (gates.py)

An infinite value (a run that never reached a goal) makes intervals useless. Then a sign test replaces the t-test: it
counts the seeds in which each arm was better.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any, Literal

import numpy as np

from gruppo.lab.claims.claim import Claim, Condition
from gruppo.lab.claims.measures import measure
from gruppo.lab.compare.statistics import paired
from gruppo.train.estimates import mean_interval

Holds = Literal["yes", "no", "open"]


@dataclass(frozen=True)
class Judged:
    """A condition, with what the seeds say about it."""

    condition: Condition
    holds: Holds
    baseline: list[float]
    entrant: list[float]
    mean: float
    low: float
    high: float
    how: str = "paired t"


def judge(condition: Condition, runs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> Judged:
    """`runs`: {arm: [rows of each seed]}, seeds in one order."""
    read = measure(condition.measure)
    a, b = ([read(rows) for rows in runs[arm]] for arm in ("entrant", condition.against))
    return of_values(condition, a, b)


def of_values(condition: Condition, a: Sequence[float], b: Sequence[float]) -> Judged:
    """The condition judged by the values of the entrant (a) and the baseline (b), paired by seed."""
    a, b = list(a), list(b)
    if np.isnan([*a, *b]).any():
        raise ValueError(
            f"measure {condition.measure!r} has no value for a run: left out, the run would count for neither arm, and "
            "a verdict is over all seeds or none. Measure something that every run has, such as last(held_out)."
        )
    if condition.kind == "at_most":
        i = mean_interval(a)
        return Judged(condition, _below(i.low, i.high, condition.size), b, a, i.mean, i.low, i.high, "t")
    if not np.isfinite([*a, *b]).all():
        return _by_signs(condition, a, b)
    if condition.of == "ratio":
        a_, b_ = np.log(np.maximum(a, 1e-300)), np.log(np.maximum(b, 1e-300))
    else:
        a_, b_ = np.array(a), np.array(b)
    down = condition.kind == "lower" or (condition.kind == "not_worse" and condition.better == "lower")
    sign, size = (-1.0, _down(condition)) if down else (1.0, _up(condition))
    level = 0.9 if condition.kind == "not_worse" else 0.95  # one-sided at 95 %
    d = paired(sign * a_, sign * b_, level)
    if condition.kind == "not_worse":
        holds: Holds = "yes" if d.low > -size else "no" if d.high < -size else "open"
    else:
        holds = "yes" if d.low > 0 and d.mean >= size else "no" if d.high < max(size, 1e-12) else "open"
    return Judged(condition, holds, b, a, d.mean, d.low, d.high)


def _up(c: Condition) -> float:
    return math.log1p(c.size) if c.of == "ratio" else c.size


def _down(c: Condition) -> float:
    """A third less, as a ratio, is log(1 / (1 − 1/3))."""
    return -math.log1p(-c.size) if c.of == "ratio" else c.size


def _below(low: float, high: float, size: float) -> Holds:
    return "yes" if high <= size else "no" if low > size else "open"


def _by_signs(c: Condition, a: list[float], b: list[float]) -> Judged:
    """Two-sided sign test at 5 %; ties are left out. The claimed size is not judged."""
    sign = -1 if c.kind == "lower" or c.better == "lower" else 1
    wins, losses = (sum(sign * s * (x - y) > 0 for x, y in zip(a, b, strict=True) if x != y) for s in (1, -1))
    n = wins + losses
    tail = sum(comb(n, k) for k in range(max(wins, losses), n + 1)) / 2**n if n else 1.0
    clear = 2 * tail < 0.05
    holds: Holds = "open" if not clear else "yes" if wins > losses else "no"
    how = f"sign test: {wins} of {n} seeds, p {min(2 * tail, 1.0):.3f}"
    return Judged(c, holds, b, a, math.nan, math.nan, math.nan, how)


def verdict(claim: Claim, runs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> tuple[str, list[Judged]]:
    judged = [judge(c, runs) for c in claim.conditions]
    return together([j.holds for j in judged]), judged


def together(holds: Sequence[str]) -> str:
    """The verdict of all conditions."""
    if "no" in holds:
        return "not reproduced"
    return "inconclusive" if "open" in holds else "reproduced"
