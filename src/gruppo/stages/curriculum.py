"""Which tasks come next, and how many samples of each?"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

from gruppo.data import permutation
from gruppo.stages.context import Ask, Context
from gruppo.stages.occupant import Occupant


class Curriculum(Protocol):
    def __call__(self, ctx: Context, tasks: Any) -> list[Ask]: ...


@lru_cache(maxsize=4)
def _epoch(size: int, seed: int, epoch: int) -> list[int]:
    """The order of an epoch: the same at every step of it."""
    return permutation(size, seed, "epoch", epoch).tolist()


def _out_of_turn(ctx: Context, size: int, n: int) -> list[int]:
    """n distinct random indices; a small set is shuffled instead."""
    drawn = ctx.uniform("again", ctx.round, torch.arange(4 * n)) * size
    picks = list(dict.fromkeys(drawn.long().tolist()))[:n]
    return picks if len(picks) == n else permutation(size, ctx.seed, "again", ctx.step, ctx.round)[:n].tolist()


def in_turn(ctx: Context, size: int, n: int) -> list[int]:
    """The n indices of this step if every task comes once per epoch; a redraw takes random ones instead."""
    if ctx.round > 0:
        return _out_of_turn(ctx, size, n)
    first, picks = ctx.step * n, list[int]()
    for epoch in range(first // size, (first + n - 1) // size + 1):
        order = _epoch(size, ctx.seed, epoch)
        picks += order[max(first - epoch * size, 0) : first + n - epoch * size]
    return picks


def weighted(ctx: Context, weight_T: Tensor, n: int, *key: int | str, replace: bool = False) -> list[int]:
    """n indices, drawn in proportion to their weights. If all weights are 0, all count as 1.

    Without replacement: the n largest of log w + Gumbel noise (Vieira 2014; Kool et al. 2019, arXiv:1903.06059); fewer
    than n if fewer have a weight above 0. With replacement: by inverting the cumulative weights.
    """
    weight_T = weight_T.double()
    if not bool((torch.isfinite(weight_T) & (weight_T >= 0)).all()):
        bad = weight_T[~(torch.isfinite(weight_T) & (weight_T >= 0))]
        raise ValueError(
            f"{len(bad)} of {len(weight_T)} weights of tasks are no chances, the first is {float(bad[0]):g}: nothing "
            "can be drawn by them. Give finite numbers, 0 or more."
        )
    if not bool(weight_T.any()):
        weight_T = torch.ones_like(weight_T)
    if replace:
        upto_T = weight_T.cumsum(0)
        at = ctx.uniform("weighted", ctx.round, *key, torch.arange(n)) * upto_T[-1]
        last = int(torch.nonzero(weight_T)[-1])
        return torch.searchsorted(upto_T, at, right=True).clamp(max=last).tolist()
    noise_T = -torch.log(-torch.log(ctx.uniform("weighted", ctx.round, *key, torch.arange(len(weight_T)))))
    n = min(n, int(weight_T.count_nonzero()))
    return torch.topk(weight_T.log() + noise_T, n).indices.tolist()


def asked(ctx: Context, tasks: Any, indices: Iterable[int]) -> list[Ask]:
    """An ask for each index. A task that occurs twice has a second group, with a random key of its own."""
    times: dict[int, int] = {}
    out: list[Ask] = []
    for i in indices:
        task = tasks[i]
        times[i] = times.get(i, 0) + 1
        again = f"#{times[i]}" if times[i] > 1 else ""
        out.append(Ask(task, ctx.samples, group=f"{task.uid}{again}", key=again, index=i))
    return out


def told(asks: Iterable[Ask], **how: Any) -> list[Ask]:
    """The asks with these options for whoever plays them, such as turns=10."""
    return [replace(ask, how={**ask.how, **how}) for ask in asks]


@dataclass(frozen=True)
class Uniform(Occupant):
    """Every task once per epoch, in an order that is random for each epoch; a redraw takes random tasks.

    The position in the data is a function of the step, so a checkpoint need not hold it.
    """

    def __call__(self, ctx: Context, tasks: Any) -> list[Ask]:
        return [Ask(tasks[i], ctx.samples, index=i) for i in in_turn(ctx, len(tasks), ctx.prompts)]
