"""Terms: what objectives and penalties return (design 3.3)."""

from dataclasses import dataclass

from torch import Tensor

from gruppo.data import Batch, Level
from gruppo.pieces import aggregate


@dataclass(frozen=True)
class Term:
    """A quantity to be maximised: coef · (mean of `value` over the rows in `over`).

    `over` is counted over the optimiser step, never over a micro-batch. `additive` says that a row's value depends
    on statistics of its own sequence only, and `over` and `coef` on none: then one fused pass is exact. An empty
    `over` gives 0 with a graph.
    """

    name: str
    value: Tensor
    over: Tensor
    mean: str | float = "token"
    coef: float | Tensor = 1.0
    at: Level = "N"
    additive: bool = True

    def weights(self, batch: Batch) -> Tensor:
        return aggregate.weights(batch, self.at, self.over, self.mean)

    def total(self, weight: Tensor) -> Tensor:
        return aggregate.weighted_sum(self.coef * self.value, weight)
