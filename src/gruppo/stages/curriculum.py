"""Which tasks next, and how many samples for each?"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch

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


@dataclass(frozen=True)
class Uniform(Occupant):
    """Every task once an epoch, in an order keyed by the epoch; a draw again takes keyed tasks out of turn.

    The position in the data is a function of the step, so there is nothing to save and nothing to lose.
    """

    def __call__(self, ctx: Context, tasks: Any) -> list[Ask]:
        n, size = ctx.prompts, len(tasks)
        if ctx.round > 0:
            picks = _out_of_turn(ctx, size, n)
        else:
            first = ctx.step * n
            picks = []
            for epoch in range(first // size, (first + n - 1) // size + 1):
                order = _epoch(size, ctx.seed, epoch)
                picks += order[max(first - epoch * size, 0) : first + n - epoch * size]
        return [Ask(tasks[i], ctx.samples) for i in picks]
