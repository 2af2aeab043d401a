"""Success rate as a function of help p: the three-parameter logistic curve of item response theory, and its fit.

    f(p) = b + (1 − b) / (1 + e^{−k (p + μ)})

k is the slope, −μ the midpoint, b the success rate without help (the guessing parameter).
"""

from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
SLOPES = np.geomspace(1.0, 64.0, 13)
MIDDLES = np.linspace(-1.5, 0.5, 41)
FLOORS = np.linspace(0.0, 0.9, 10)
GRID: Reals = np.array(list(product(SLOPES, MIDDLES, FLOORS)))
DOUBT, NEAR = 0.1, 1e-6 * np.eye(3)
LOW, HIGH = np.array([0.5, -2.0, 0.0]), np.array([100.0, 1.0, 0.95])


class Curve(NamedTuple):
    k: float
    mu: float
    b: float

    def at(self, p: Reals | float) -> Reals:
        return _curve(np.asarray(p), self.k, self.mu, self.b)

    def inverse(self, target: float) -> float:
        """The p with f(p) = target: −μ − ln((1 − b)/(target − b) − 1)/k; −∞ if f is always above it."""
        if self.b >= target:
            return -float("inf")
        return -self.mu - float(np.log((1 - self.b) / (target - self.b) - 1)) / self.k


def _curve(p: Reals, k: Reals | float, mu: Reals | float, b: Reals | float) -> Reals:
    return b + (1 - b) / (1 + np.exp(-k * (p + mu)))


def fitted(p: Reals, share: Reals, steps: int = 20) -> Curve:
    """The least-squares curve through the success rates at these p: the best of a grid, then damped Gauss-Newton
    steps inside the bounds.

    Few points do not determine b, so (`DOUBT` b)² is added: of curves that fit equally well, the smallest b wins.
    """

    def gap(x: Reals) -> Reals:
        k, mu, b = (x[..., i : i + 1] for i in range(3))
        return np.concatenate([_curve(p, k, mu, b) - share, DOUBT * b], -1)

    wrong = (gap(GRID) ** 2).sum(1)
    best, least, damp = GRID[wrong.argmin()], float(wrong.min()), 1e-3
    for _ in range(steps):
        slope = (gap(best + NEAR) - gap(best - NEAR)) / 2e-6  # one row per parameter
        square = slope @ slope.T
        move = np.linalg.solve(square + damp * np.diag(np.diag(square)) + 1e-12 * np.eye(3), slope @ gap(best))
        trial = np.clip(best - move, LOW, HIGH)
        error = float((gap(trial) ** 2).sum())
        best, least, damp = (trial, error, damp / 4) if error < least else (best, least, damp * 8)
    return Curve(*map(float, best))


def next_rate(points: list[tuple[float, float]], target: float, most: float) -> float:
    """The help in [0, `most`] that should give the target success rate, from (help, success rate) seen so far.

    With three or more different amounts of help, it is where the fitted curve meets the target, or 0 if the curve is
    always above it. With fewer, the midpoint between too little and too much.
    """
    seen: dict[float, list[float]] = {}
    for p, share in points:
        seen.setdefault(p, []).append(share)
    p, share = np.array(list(seen)), np.array([float(np.mean(s)) for s in seen.values()])
    if len(seen) >= 3:
        return float(np.clip(fitted(p, share).inverse(target), 0.0, most))
    if bool((share == target).any()):
        return float(p[share == target][-1])
    low, high = p[share < target].max(initial=0.0), p[share > target].min(initial=most)
    return float((low + high) / 2)
