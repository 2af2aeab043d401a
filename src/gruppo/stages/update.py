"""How is the step taken? The learner offers step, grad, apply, snapshot, restore and copy."""

from dataclasses import dataclass
from typing import Any, Protocol

from gruppo.data import Batch, minibatches
from gruppo.stages.context import Context
from gruppo.stages.occupant import Occupant, setting


class Update(Protocol):
    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None: ...


@dataclass(frozen=True)
class Passes(Occupant):
    """`epochs` passes over the batch, each in `minibatches` of whole groups; one optimiser step per minibatch."""

    epochs: int = setting(1, low=1, witness=2)
    minibatches: int = setting(1, low=1, witness=[2, 3])
    every_writer = True

    @property
    def steps(self) -> int:
        """Optimiser steps per batch; with one, log π_old is log π itself and costs nothing."""
        return self.epochs * self.minibatches

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        for epoch in range(self.epochs):
            for part in minibatches(batch, self.minibatches, ctx.seed, ctx.step, epoch):
                for role in learner.trained:
                    learner.step(role, part)
