"""Terms: what objectives and penalties average, declared before any statistic is known."""

from dataclasses import dataclass

from torch import Tensor

from gruppo.data import Batch, Level
from gruppo.pieces import aggregate

Values = dict[str, Tensor]  # what an objective or penalty returns: the values of its terms, by name


@dataclass(frozen=True)
class Term:
    """A quantity to be maximised: coef · (mean of its values over the rows in `over`).

    `over`, `mean` and `coef` are declared before the statistics are known; calling the occupant gives the values. Rows
    are counted over the optimiser step, never over a micro-batch. `additive`: the value of a row depends only on
    statistics of its own sequence, so one fused pass is exact. An empty `over` gives 0, with a graph. A term with
    coefficient 0 is logged, not maximised.
    """

    name: str
    over: Tensor
    mean: str | float = "token"
    coef: float | Tensor = 1.0
    at: Level = "N"
    additive: bool = True
    declared_by: int = -1  # which occupant of the goal; the goal fills it in

    @property
    def logged_only(self) -> bool:
        return isinstance(self.coef, float | int) and self.coef == 0

    def weights(self, batch: Batch) -> Tensor:
        """The weight of each row in the mean over this batch."""
        return aggregate.weights(batch, self.at, self.over, self.mean)

    def total(self, value: Tensor, weight: Tensor) -> Tensor:
        return aggregate.weighted_sum(self.coef * value, weight)
