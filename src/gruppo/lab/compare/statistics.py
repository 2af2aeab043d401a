"""Differences between runs, as pure functions: paired tests, margins, and corrections for multiple tests.

The unit is what was drawn independently, such as a seed. Intervals are two-sided at `level`.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gruppo.train.estimates import Interval, mean_interval, standard_error, t_cdf


@dataclass(frozen=True)
class Difference(Interval):
    """The interval of a - b, paired. `p` is two-sided, for the hypothesis of no difference."""

    p: float


def paired(a: ArrayLike, b: ArrayLike, level: float = 0.95) -> Difference:
    """The paired t-test: a_i and b_i share a unit such as a seed, whose noise cancels in a_i - b_i.

    Pairs with a NaN are left out. The interval is NaN with fewer than two pairs, and if all differences are equal but
    not 0: scores lie on a grid, so two seeds may well differ by the same amount, and an interval of width 0 would
    mislead. If all differences are 0, p = 1.
    """
    d = np.asarray(a, np.float64) - np.asarray(b, np.float64)
    if np.isnan(d).all():
        return Difference(math.nan, math.nan, math.nan, 0, p=math.nan)
    i = mean_interval(d, level)
    if i.n < 2:
        return Difference(i.mean, i.low, i.high, i.n, p=math.nan)
    error = standard_error(d)
    if error <= 1e-12 * abs(i.mean):  # only rounding
        unknown = math.nan if i.mean else 0.0
        return Difference(i.mean, unknown, unknown, i.n, p=math.nan if i.mean else 1.0)
    return Difference(i.mean, i.low, i.high, i.n, p=2 * t_cdf(-abs(i.mean) / error, i.n - 1))


def non_inferior(a: ArrayLike, b: ArrayLike, margin: float, level: float = 0.95) -> bool:
    """Whether a is not worse than b by `margin`: the one-sided lower bound of a - b at `level` is above -margin."""
    if margin <= 0:
        raise ValueError(f"margin={margin}: no number of seeds could show it. Use one above 0.")
    return paired(a, b, level=2 * level - 1).low > -margin


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment (1979): the chance that any true "no difference" has a p below α is at most α.

        p'_(i) = max_{j <= i} min(1, (m - j + 1) p_(j)),   p_(1) <= … <= p_(m)

    NaN (a test that could not be made) stays NaN and does not count in m.
    """
    known = sorted((x, i) for i, x in enumerate(p) if not math.isnan(x))
    out, worst = [math.nan] * len(p), 0.0
    for rank, (x, i) in enumerate(known):
        worst = max(worst, min(1.0, (len(known) - rank) * x))
        out[i] = worst
    return out


@dataclass(frozen=True)
class Pair:
    """One of several differences, a - b, with its p adjusted for all of them."""

    a: str
    b: str
    difference: Difference
    p_holm: float

    @property
    def beyond_noise(self) -> bool:
        return self.p_holm < 0.05  # NaN is not


def pairwise(values: Mapping[str, ArrayLike]) -> list[Pair]:
    """All differences between entrants, paired by unit: every entrant has one value per unit, in the same order."""
    names = list(itertools.combinations(values, 2))
    found = [paired(values[a], values[b]) for a, b in names]
    adjusted = holm([d.p for d in found])
    return [Pair(a, b, d, p) for (a, b), d, p in zip(names, found, adjusted, strict=True)]


# ---- words


def no_interval(low: float, high: float, n: int, unit: str) -> str:
    """Why there is no interval; empty if there is one. Scores lie on a grid, so one of width 0 would mislead."""
    if n < 2:
        return f"one {unit}: no interval" if n else f"no {unit} was judged"
    spread = high - low > 1e-12 * max(abs(low), abs(high))  # not of NaN, and not by rounding
    return "" if spread else f"every {unit}: no spread"


def in_words(i: Interval, unit: str, sign: str = "") -> str:
    """`0.500 [0.400, 0.600]`, or the mean and why there is no interval; with `sign="+"`, of a difference."""
    why = no_interval(i.low, i.high, i.n, unit)
    return f"{i.mean:{sign}.3f} " + (f"({why})" if why else f"[{i.low:{sign}.3f}, {i.high:{sign}.3f}]")


def in_json(x: Any, unit: str) -> Any:
    """A table, in which an interval that is none has null for its ends and says why in `no_interval`."""
    if isinstance(x, Mapping):
        out = {k: in_json(v, unit) for k, v in x.items()}
        if {"low", "high"} <= out.keys():
            why = no_interval(out["low"], out["high"], out.get("n", out.get("prompts", 0)), unit)
            out |= {"low": None, "high": None, "no_interval": why} if why else {}
        return out
    return [in_json(v, unit) for v in x] if isinstance(x, list | tuple) else x
