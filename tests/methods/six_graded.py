"""As six_answers, with a half-right answer; advantages, clips and sums by plain loops."""

import math
from collections.abc import Sequence

from hand import answer, batch_of, column, mean
from six_answers import LOGP, OLD, REF

from gruppo.data import Batch
from gruppo.stages import Context

ONE_RIGHT = (1.0, 0.0, 0.0, 0.0)


def group(rewards: Sequence[float], tokens: int | Sequence[int] = 1, name: str = "g", first: int = 0) -> list:
    lengths = [tokens] * len(rewards) if isinstance(tokens, int) else tokens
    return [answer(first + i, name, n, r) for i, (r, n) in enumerate(zip(rewards, lengths, strict=True))]


def adv(credit: object, batch: Batch) -> list[float]:
    return column(credit(Context(), batch)["adv_N"])  # type: ignore[operator]


LENGTHS, GROUPS = [2, 1, 3, 1, 2, 2], ["p", "p", "p", "q", "q", "q"]


REWARDS = [1.0, 0.0, 0.0, 1.0, 0.5, 0.0]


B, T = len(LENGTHS), sum(LENGTHS)


def hand_batch(*extra: object, old: Sequence[float] = (), ref: Sequence[float] = ()) -> Batch:
    answers = [answer(i, g, n, r) for i, (g, n, r) in enumerate(zip(GROUPS, LENGTHS, REWARDS, strict=True))]
    return batch_of([*answers, *extra], logp_old_N=[*OLD, *old], logp_ref_N=[*REF, *ref])  # type: ignore[list-item]


def each_token(per_answer: Sequence[float]) -> list[float]:
    return [a for a, n in zip(per_answer, LENGTHS, strict=True) for _ in range(n)]


def centred() -> list[float]:
    return [r - mean([REWARDS[j] for j in range(B) if GROUPS[j] == GROUPS[i]]) for i, r in enumerate(REWARDS)]


def whitened(x: Sequence[float]) -> list[float]:
    m = mean(x)
    return [(v - m) / math.sqrt(math.fsum((w - m) ** 2 for w in x) / (len(x) - 1) + 1e-8) for v in x]


def clip_term(lp: float, old: float, a: float) -> tuple[float, float]:
    """min(rA, clip(r, .8, 1.2) A), and its derivative by log π."""
    r = math.exp(lp - old)
    plain, clipped = r * a, min(max(r, 0.8), 1.2) * a
    return (plain, r * a) if plain <= clipped else (clipped, 0.0)


def clipped_by_loops(advs: Sequence[float], weights: Sequence[float]) -> tuple[float, list[float]]:
    """Σ_t w_t PPOclip(r_t, A_t), and its slope."""
    parts = [clip_term(lp, old, a) for lp, old, a in zip(LOGP, OLD, advs, strict=True)]
    return (
        math.fsum(w * v for w, (v, _) in zip(weights, parts, strict=True)),
        [w * d for w, (_, d) in zip(weights, parts, strict=True)],
    )
