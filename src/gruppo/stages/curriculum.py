"""Which tasks next, and how many samples for each?"""

from collections.abc import Iterable
from dataclasses import dataclass
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
    """n different keyed picks; a small set is shuffled whole."""
    drawn = ctx.uniform("again", ctx.round, torch.arange(4 * n)) * size
    picks = list(dict.fromkeys(drawn.long().tolist()))[:n]
    return picks if len(picks) == n else permutation(size, ctx.seed, "again", ctx.step, ctx.round)[:n].tolist()


def in_turn(ctx: Context, size: int, n: int) -> list[int]:
    """The n indices of this step when every task comes once an epoch; a draw again takes some out of turn."""
    if ctx.round > 0:
        return _out_of_turn(ctx, size, n)
    first, picks = ctx.step * n, list[int]()
    for epoch in range(first // size, (first + n - 1) // size + 1):
        order = _epoch(size, ctx.seed, epoch)
        picks += order[max(first - epoch * size, 0) : first + n - epoch * size]
    return picks


def weighted(ctx: Context, weight_T: Tensor, n: int, *key: int | str, replace: bool = False) -> list[int]:
    """n indices drawn with chances in proportion to their weights; a weight of 0 never, all of 0 as if all were 1.

    Without replacement by keyed Gumbel noise, the n largest of log w + g (Vieira 2014; Kool et al. 2019,
    arXiv:1903.06059): less than n come if less have a weight. With replacement by the inverse of the cumulated weights.
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
    """An ask for each index. A task that comes a second time has a group and draws of its own."""
    times: dict[int, int] = {}
    out: list[Ask] = []
    for i in indices:
        task = tasks[i]
        times[i] = times.get(i, 0) + 1
        again = f"#{times[i]}" if times[i] > 1 else ""
        out.append(Ask(task, ctx.samples, group=f"{task.uid}{again}", key=again, index=i))
    return out


@dataclass(frozen=True)
class Uniform(Occupant):
    """Every task once an epoch, in an order keyed by the epoch; a draw again takes keyed tasks out of turn.

    The position in the data is a function of the step, so there is nothing to save and nothing to lose.
    """

    def __call__(self, ctx: Context, tasks: Any) -> list[Ask]:
        return [Ask(tasks[i], ctx.samples, index=i) for i in in_turn(ctx, len(tasks), ctx.prompts)]
