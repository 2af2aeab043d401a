"""The laboratory's figures once more, with nothing but numpy and sums: no batch, no room, no autograd."""

import math
from itertools import product

import numpy as np
from numpy.typing import NDArray

from gruppo.lab.exact.world import ExactWorld

Array = NDArray[np.float64]


def mass(world: ExactWorld, theta: Array) -> Array:
    """P(answer | prompt), token by token."""
    logit = {cell: theta[i] for i, cell in enumerate(world.cells)}
    out = np.ones((len(world.rates), len(world.answers)))
    for q in range(len(world.rates)):
        for i, answer in enumerate(world.answers):
            for t, c in enumerate(answer + "."):
                open_to = world.following(answer[:t])
                if len(open_to) > 1:
                    z = [math.exp(logit[q, answer[:t], x]) for x in open_to]
                    out[q, i] *= z[open_to.index(c)] / sum(z)
    return out


def expected_reward(world: ExactWorld, theta: Array) -> float:
    return float((mass(world, theta) * world.reward_QA.numpy()).sum(1).mean())


def score(world: ExactWorld, theta: Array, q: int, a: int) -> Array:
    """∇ log P(answer | prompt): 1 on the tokens taken, less their probability."""
    out, answer = np.zeros(len(theta)), world.answers[a]
    for t, c in enumerate(answer + "."):
        here = [i for i, (r, b, _) in enumerate(world.cells) if (r, b) == (q, answer[:t])]
        z = np.exp(theta[here])
        for i, p in zip(here, z / z.sum() if len(z) else z, strict=True):
            out[i] += (world.cells[i][2] == c) - p
    return out


def rloo_moments(world: ExactWorld, samples: int) -> tuple[Array, float]:
    """Mean and trace of the covariance of RLOO's gradient: every ordered group of every prompt."""
    theta = world.theta.numpy()
    chance, reward = mass(world, theta), world.reward_QA.numpy()
    scores = [[score(world, theta, q, a) for a in range(len(world.answers))] for q in range(len(world.rates))]
    means, variance = [], 0.0
    for q in range(len(world.rates)):
        first, second = np.zeros(len(theta)), 0.0
        for group in product(range(len(world.answers)), repeat=samples):
            p = float(np.prod([chance[q, a] for a in group]))
            total = sum(reward[q, a] for a in group)
            adv = [reward[q, a] - (total - reward[q, a]) / (samples - 1) for a in group]
            g = sum(w * scores[q][a] for w, a in zip(adv, group, strict=True)) / samples
            first, second = first + p * g, second + p * float(g @ g)
        means.append(first)
        variance += (second - float(first @ first)) / len(world.rates)
    return np.mean(means, 0), variance


def grpo_contrast(p: float, samples: int, eps: float = 1e-6) -> float:
    """Σ_k Bin(k; G, p) · k/G · A_k / (p (1 − p)),   A_k = (1 − k/G) / (std_k + eps),   std_k² = k (G−k) / (G (G−1)).

    The mean advantage of a right answer is the sum over p; advantages of a group add up to 0, which gives the wrong
    ones, and the difference of the two.
    """
    total = 0.0
    for k in range(1, samples):
        std = math.sqrt(k * (samples - k) / (samples * (samples - 1)))
        total += math.comb(samples, k) * p**k * (1 - p) ** (samples - k) * k / samples * (1 - k / samples) / (std + eps)
    return total / (p * (1 - p))
