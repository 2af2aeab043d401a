"""One optimiser step that another trainer takes in parts: its terms and weights, or the slopes of the whole step.

It is `gruppo.stages.goal` for a trainer that hands over statistics part by part. It has no model.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.stages.goal import Goal, Sum, zero_of
from gruppo.stages.readouts import Stats


class OneStep:
    """J of one optimiser step. `whole` says that statistics of all rows must come first, with `begin`.

    first  no step has been taken since the batch was read: log π_old is log π itself, to the last bit
    """

    def __init__(self, goal: Goal, batch: Batch, first: bool = False) -> None:
        if first and "logp_old_N" in batch.columns:
            batch = replace(batch, columns={k: x for k, x in batch.columns.items() if k != "logp_old_N"}, _cache={})
        self.goal, self.batch = goal, batch
        terms = goal.terms(batch)
        self.whole = not goal.fused(terms)
        self.total = Sum(terms, [] if self.whole else goal.weights(batch, terms, goal.counts(batch, terms)))
        self.slopes: dict[str, Tensor] = {}

    def columns(self) -> list[str]:
        """What is read at every row: `logp_N`, `entropy_N`."""
        return [n.column for n in self.goal.needs()]

    def begin(self, stats: Mapping[str, Tensor]) -> None:
        """The statistics of all rows, for an objective that couples them: gives dJ/dstatistic."""
        leaves = {name: stats[name].detach().clone().requires_grad_() for name in self.columns()}
        with torch.enable_grad():
            self.slopes, self.total = self.goal.slopes(with_old(self.batch, leaves), leaves)

    def part(self, rows_S: Tensor, stats: Mapping[str, Tensor]) -> Tensor:
        """What these sequences add to J, with gradient; the value is that of J only if rows are not coupled."""
        micro = self.batch.micro(rows_S.to(self.batch.device))
        if not self.whole:
            found = self.goal.values(with_old(micro, stats), Stats(stats), self.total.terms)
            return self.total.add_micro(found, micro, stats)
        value = zero_of(stats)
        for name, slope in self.slopes.items():
            value = value + (slope[micro.columns["row_N"]] * stats[name]).sum()
        return value


def with_old(batch: Batch, stats: Mapping[str, Tensor]) -> Batch:
    """The batch with log π_old: with one optimiser step per batch it is log π itself."""
    if "logp_old_N" in batch.columns or "logp_N" not in stats:
        return batch
    return batch.with_columns(logp_old_N=stats["logp_N"].detach())
