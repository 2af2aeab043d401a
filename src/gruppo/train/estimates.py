"""Estimates and intervals, as pure functions: means, pass@k and maj@k.

Intervals are two-sided at `level`. The unit is what was drawn independently: a prompt (with all its answers) in an
evaluation, a seed in a comparison. Several answers to one prompt are one unit, so they never make an interval narrower
than the prompts allow.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import mpmath
import numpy as np
from numpy.typing import ArrayLike, NDArray

Reals = NDArray[np.float64]
Ints = NDArray[np.int64]

# ---- Student's t ---------------------------------------------------------------------------------


def t_cdf(t: float, df: float) -> float:
    """P(T <= t) = 1 - I_x(df/2, 1/2) / 2 for t >= 0, with x = df / (df + t²) and I the regularised beta function."""
    if math.isinf(t):
        return float(t > 0)
    tail = mpmath.betainc(df / 2, 0.5, 0, df / (df + t * t), regularized=True) / 2
    return float(1 - tail if t > 0 else tail)


@lru_cache(maxsize=1024)
def t_quantile(p: float, df: float) -> float:
    """The t with P(T <= t) = p, by bisection."""
    if not 0 < p < 1 or df <= 0:
        raise ValueError(f"p={p}, df={df}: there is no such quantile. Use 0 < p < 1 and df > 0.")
    if p < 0.5:
        return -t_quantile(1 - p, df)
    low, high = 0.0, 1.0
    while t_cdf(high, df) < p:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2


# ---- intervals -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    mean: float
    low: float  # NaN for a single unit
    high: float
    n: int  # independent units

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]" if self.n > 1 else f"{self.mean:.3f}"


def mean_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """Student's t: mean ± t_{n-1} · s / √n. `values` has one number per unit, such as a seed; NaN is left out."""
    x = _known(values)
    half = t_quantile((1 + level) / 2, len(x) - 1) * standard_error(x) if len(x) > 1 else math.nan
    mean = float(x.mean())
    return Interval(mean, mean - half, mean + half, len(x))


def share_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """For numbers in [0, 1] such as the share of right answers to each prompt: Wilson's interval (1927).

        (p + t²/2m ± t √(p(1-p)/m + t²/4m²)) / (1 + t²/m),   m = p(1-p) / (s²/n),   t = t_{n-1}

    m is the effective number of independent yes-no answers, given the observed spread (Korn and Graubard 1998). Unlike
    mean ± t·s/√n the interval stays in [0, 1], and is not empty when all answers are right; Brown, Cai and DasGupta
    (2001) measure the difference. Without any spread, each unit counts as one answer.
    """
    x = _known(values)
    p = float(x.mean())
    if len(x) < 2:
        return Interval(p, math.nan, math.nan, len(x))
    t, spread = t_quantile((1 + level) / 2, len(x) - 1), standard_error(x) ** 2
    m = p * (1 - p) / spread if spread > 0 else float(len(x))
    centre = (p + t * t / (2 * m)) / (1 + t * t / m)
    half = t * math.sqrt(p * (1 - p) / m + t * t / (4 * m * m)) / (1 + t * t / m)
    return Interval(p, max(min(centre - half, p), 0.0), min(max(centre + half, p), 1.0), len(x))  # rounding


def score_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """`share_interval` where all values are in [0, 1], else `mean_interval`."""
    x = _known(values)
    return (share_interval if x.min() >= 0 and x.max() <= 1 else mean_interval)(x, level)


def standard_error(values: ArrayLike) -> float:
    """s / √n; NaN for one value."""
    x = _known(values)
    return float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else math.nan


def _known(values: ArrayLike) -> Reals:
    x = np.asarray(values, np.float64).ravel()
    x = x[~np.isnan(x)]
    if not len(x):
        raise ValueError("there is no value to take a mean of: nothing was measured. Give at least one number.")
    return x


# ---- k answers to one prompt ---------------------------------------------------------------------


def pass_at_k(score_PS: ArrayLike, k: int) -> Reals:
    """For each prompt the expected best score of k of its answers, without bias (Chen et al. 2021, arXiv:2107.03374).

        Σ_i s_(i) C(i-1, k-1) / C(n, k),   s_(1) <= … <= s_(n);   for scores 0 and 1:  1 - C(n-c, k) / C(n, k)

    the mean over all sets of k of the n answers. A score of NaN means not judged; a prompt with fewer than k judged
    answers has NaN.
    """
    sorted_PS = np.sort(np.asarray(score_PS, np.float64), axis=1)  # NaN comes last
    n_P = (~np.isnan(sorted_PS)).sum(1)
    n_U, which_P = np.unique(n_P, return_inverse=True)
    weight_US = np.array([_best_of(int(n), k, sorted_PS.shape[1]) for n in n_U])
    return (weight_US[which_P] * np.nan_to_num(sorted_PS)).sum(1)


@lru_cache(maxsize=4096)
def _best_of(n: int, k: int, width: int) -> tuple[float, ...]:
    """The probability that each rank is the best of k drawn from n."""
    if n < k:
        return (math.nan,) * width
    sets = math.comb(n, k)
    return tuple(math.comb(i, k - 1) / sets if i < n else 0.0 for i in range(width))


def maj_at_k(score_PS: ArrayLike, answer_PS: ArrayLike, k: int) -> Reals:
    """For each prompt the expected score of the majority answer of k of its answers.

    The exact mean over all sets of k of the n answers; ties are broken with equal probability. `answer_PS` holds a
    number for each distinct answer to a prompt. Equal answers with different scores count with their mean. NaN scores
    as in `pass_at_k`.
    """
    scores, answers = np.asarray(score_PS, np.float64), np.asarray(answer_PS)
    return np.array([_majority(s[~np.isnan(s)], a[~np.isnan(s)], k) for s, a in zip(scores, answers, strict=True)])


def _majority(score_S: Reals, answer_S: Ints, k: int) -> float:
    if len(score_S) < k:
        return math.nan
    _, which_S, size_C = np.unique(answer_S, return_inverse=True, return_counts=True)
    score_C = np.bincount(which_S, score_S) / size_C
    order = np.argsort(-size_C, kind="stable")
    return float(np.dot(win_chances(tuple(size_C[order].tolist()), k), score_C[order]))


@lru_cache(maxsize=65536)
def win_chances(sizes: tuple[int, ...], k: int) -> tuple[float, ...]:
    """The probability that each answer wins a vote of k, drawn without replacement; answer i occurs `sizes[i]` times.

    It wins with j votes if every other answer has at most j, with probability 1/(t+1) if t others also have j:

        P(i) = Σ_j C(m_i, j) Σ_t W_j(k - j, t) / (t + 1) / C(n, k)

    where W_j(r, t) is the number of ways to draw r from the others, at most j of each, exactly t of them with j.
    """
    if k == sum(sizes):
        first = max(sizes)
        return tuple(float(m == first) / sizes.count(first) for m in sizes)
    chance: dict[int, float] = {}
    for size in set(sizes):
        others = list(sizes)
        others.remove(size)
        ways = sum(math.comb(size, j) * _shared_ways(others, k - j, j) for j in range(1, min(size, k) + 1))
        chance[size] = ways / math.comb(sum(sizes), k)
    return tuple(chance[m] for m in sizes)


def _shared_ways(others: Sequence[int], rest: int, top: int) -> float:
    """Σ_t W_top(rest, t) / (t + 1), by adding the answers one by one to a table over (drawn, with `top`)."""
    ways = np.zeros((rest + 1, rest // top + 1))
    ways[0, 0] = 1.0
    step = np.subtract.outer(np.arange(rest + 1), np.arange(rest + 1))  # from b drawn to a drawn
    for size, times in Counter(others).items():
        take = np.array([math.comb(size, i) if 0 <= i < top else 0 for i in range(-rest, rest + 1)], float)
        fewer = take[step + rest]
        for _ in range(times):
            new = fewer @ ways
            if top <= min(size, rest):
                new[top:, 1:] += math.comb(size, top) * ways[:-top, :-1]
            ways = new
    return float((ways[rest] / np.arange(1, ways.shape[1] + 1)).sum())
