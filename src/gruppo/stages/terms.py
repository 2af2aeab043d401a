"""Terms: what objectives and penalties average, declared before any statistic is known."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from gruppo.data import Batch, Level
from gruppo.pieces import aggregate
from gruppo.pieces.aggregate import Count

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

    def count(self, batch: Batch) -> Count:
        """What its mean divides by."""
        return aggregate.count(batch, self.at, self.over, self.mean)

    def weights(self, batch: Batch, count: Count | None = None) -> Tensor:
        """The weight of each row; `count` is that of the whole optimiser step, by default of this batch."""
        return aggregate.weights(batch, self.at, self.over, self.mean, count)

    def total(self, value: Tensor, weight: Tensor) -> Tensor:
        return aggregate.weighted_sum(self.coef * value, weight)


@dataclass(frozen=True)
class Counts:
    """The denominators of one optimiser step, by term: those of disjoint parts add up to those of the whole.

    A part holds whole units, such as groups. Processes that hold different parts add their counts.
    """

    of: Mapping[str, Count] = field(default_factory=dict[str, Count])

    def __add__(self, other: "Counts") -> "Counts":
        names = dict.fromkeys((*self.of, *other.of))
        return Counts({n: self.of.get(n, Count()) + other.of.get(n, Count()) for n in names})
