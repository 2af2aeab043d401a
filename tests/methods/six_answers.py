"""Two groups of three answers, their log-probabilities and the usual sums over them, by plain loops."""

import math

import pytest
from hand import answer, batch_of, by_episode, mean, sample_std

from gruppo.data import Batch, Status
from gruppo.methods import method

NFT, DMPO, REG, DRPO = (method(n).but(select=()) for n in ("nft", "dmpo", "reg_grpo", "drpo_decoupled"))


def of_one_token(rewards: list[float | None], **columns: list[float]) -> Batch:
    """A group of answers of one token each; None: failed."""
    failed = {"status": Status.ENV_ERROR}
    episodes = [
        answer(i, "g", 1, 0.0 if r is None else r, **(failed if r is None else {})) for i, r in enumerate(rewards)
    ]
    return batch_of(episodes, **({"logp_old_N": [-1.0] * len(rewards)} | columns))


def members(i: int) -> list[int]:
    return [j for j in range(B) if GROUPS[j] == GROUPS[i]]


LENGTHS = [2, 1, 3, 1, 2, 2]


REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]


GROUPS = ["p", "p", "p", "q", "q", "q"]


LOGP = [-0.5, -1.0, -0.7, -1.2, -0.3, -2.0, -0.9, -1.5, -0.4, -0.8, -1.1]


OLD = [-0.9, -0.95, -0.7, -0.8, -0.6, -1.9, -1.3, -1.1, -0.45, -0.8, -1.6]


REF = [-0.6, -1.1, -0.2, -1.2, -0.9, -1.0, -0.9, -1.0, -1.4, -0.3, -1.1]


B, T = len(LENGTHS), sum(LENGTHS)


def hand_batch(rewards: list[float] = REWARDS):
    return batch_of(
        [answer(i, g, n, r) for i, (g, n, r) in enumerate(zip(GROUPS, LENGTHS, rewards, strict=True))],
        logp_old_N=OLD,
        logp_ref_N=REF,
    )


def close(a: object, b: object) -> None:
    assert a == pytest.approx(b, abs=1e-10, rel=1e-10)


def clip_term(lp: float, old: float, a: float, low: float, high: float) -> tuple[float, float]:
    """min(rA, clip(r) A), and its derivative by log π: rA where the clip does not bind, else 0."""
    r = math.exp(lp - old)
    plain, clipped = r * a, min(max(r, 1 - low), 1 + high) * a
    return (plain, r * a) if plain <= clipped else (clipped, 0.0)


def group_advantages(rewards: list[float], eps: float = 1e-6) -> list[float]:
    out = []
    for g in ("p", "q"):
        mine = [r for r, name in zip(rewards, GROUPS, strict=True) if name == g]
        out += [(r - mean(mine)) / (sample_std(mine) + eps) for r in mine]
    return out


LN3 = math.log(3.0)


ADV = group_advantages(REWARDS)


def answers(*columns: list[float]) -> list[tuple[list[float], ...]]:
    """Columns of tokens, cut into answers."""
    return list(zip(*(by_episode(c, LENGTHS) for c in columns), strict=True))
