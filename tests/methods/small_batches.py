"""Batches of a few answers, what is said about them, and what occupants make of them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from hand import Worked, answer, batch_of, column, worked

from gruppo.data import Batch, Episode
from gruppo.stages import Context, Stats
from gruppo.stages.reward import add_components
from gruppo.stages.select import through_second_door


def slopes(occupant: Any, ratios: list[float], adv: list[float], **columns: Any) -> tuple[float, list[float], Any]:
    """J, dJ/dlog π and all terms of one answer of so many tokens, each with its ratio and advantage."""
    old = [-1.0 - math.log(r) for r in ratios]
    batch = batch_of([answer(0, "g", len(ratios), 1.0)], logp_old_N=old, adv_N=adv, **columns)
    logp_N = torch.full((len(ratios),), -1.0, dtype=torch.float64, requires_grad=True)
    terms = worked(occupant, batch, logp_N=logp_N)
    total = terms["policy"].total(batch)
    [slope] = torch.autograd.grad(total, logp_N)
    return float(total.detach()), column(slope), {name: float(t.value[0].detach()) for name, t in terms.items()}


COV_R, COV_ADV = [1.0, 1.0, 1.5, 1.0], [2.0, -2.0, 2.0, 0.0]


def cov_slopes(occupant: Any) -> list[float]:
    """dJ/dlog π of four tokens with log π = −.1, −2.1, −.1, −2.1: means .5 and −1.1, so c = (1.5, 2.5, 1.5, .5)."""
    logp = [-0.1, -2.1, -0.1, -2.1]
    old = [lp - math.log(r) for lp, r in zip(logp, COV_R, strict=True)]
    batch = batch_of([answer(0, "g", 4, 1.0)], logp_old_N=old, adv_N=COV_ADV)
    logp_N = torch.tensor(logp, dtype=torch.float64, requires_grad=True)
    policy = worked(occupant, batch, logp_N=logp_N)["policy"]
    return column(torch.autograd.grad(policy.total(batch), logp_N)[0])


def paid(rewards: Sequence[dict[str, float]], name: str = "g", first: int = 0, tokens: int = 1) -> list[Episode]:
    made = [answer(first + i, name, tokens, 0.0) for i in range(len(rewards))]
    return [replace(e, reward=dict(r)) for e, r in zip(made, rewards, strict=True)]


def two(task: Sequence[float], style: Sequence[float], name: str = "g", first: int = 0) -> list[Episode]:
    return paid([{"task": t, "style": s} for t, s in zip(task, style, strict=True)], name, first)


def said(answers: Sequence[str], rewards: Sequence[float] = (), name: str = "g", first: int = 0) -> list[Episode]:
    rewards = rewards or [0.0] * len(answers)
    made = [answer(first + i, name, 1, r) for i, r in enumerate(rewards)]
    return [replace(e, answer=a) for e, a in zip(made, answers, strict=True)]


def by_answer(batch: Batch, adv_N: torch.Tensor) -> list[float]:
    return column(batch.gather(adv_N, "N", "E", "mean"))


def adv(credit: Any, episodes: Sequence[Episode], name: str = "adv_N") -> list[float]:
    batch = batch_of(list(episodes))
    return by_answer(batch, credit(Context(), batch)[name])


def worth(occupant: Any, episodes: list[Episode], ctx: Context | None = None) -> list[float]:
    add_components(ctx or Context(), (occupant,), episodes, of_groups=True)
    return [e.total for e in episodes]


LN2, LN3 = math.log(2.0), math.log(3.0)


def corrected(occupant: Any, old: list[float], lengths: tuple[int, ...] = (3, 1), gen: Any = None) -> tuple[list, list]:
    """(keep, weight); the sampler's log-probability is −1 everywhere unless told."""
    batch = batch_of([answer(i, "g", n, float(i % 2)) for i, n in enumerate(lengths)], logp_old_N=old)
    if gen is not None:
        batch = batch.with_columns(logp_gen_N=torch.tensor(gen, dtype=torch.float64))
    keep_N, weight_N = occupant.tokens(Context(), batch, Stats())
    return column(keep_N), column(weight_N)


THREE = [-1.0 + LN3, -1.0 - LN3, -1.0 + LN3, -1.0]  # ratios 3, 1/3, 3 of the first answer, 1 of the second


def kept(select: Any, batch: Batch, **ctx: Any) -> list[bool]:
    return column(through_second_door(Context(**ctx), (select,), batch, Stats(), current=False).learn_N)


def two_answers(adv: list[float], old: list[float], **columns: list[float]) -> Batch:
    """Two answers of two tokens each."""
    return batch_of([answer(i, "g", 2, float(i)) for i in range(2)], adv_N=adv, logp_old_N=old, **columns)


def told(objective: Any, batch: Batch, logp: list[float], name: str) -> list[float]:
    return worked(objective, batch, logp_N=logp)[name].value.tolist()


def group(rewards: Sequence[float | None], name: str = "g", first: int = 0, **fields: Any) -> list[Episode]:
    return [answer(first + i, name, 1, r, **fields) for i, r in enumerate(rewards)]


def term_of(occupant: Any, name: str, batch: Batch, logp: Sequence[float], **stats: Sequence[float]) -> Worked:
    return worked(occupant, batch, logp_N=logp, **stats)[name]
