"""Mistakes about shared prefixes."""

from dataclasses import dataclass

from planted import Objective, spoiled
from torch import Tensor

from gruppo.data import Batch
from gruppo.stages import Method, Stats


@dataclass(frozen=True)
class CountsComputedRows(Objective):
    """Reads how many rows a forward computes, which is nobody's business but the forward's."""

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        return super().per_token(batch, stats) / len(batch.inputs.tree()[0].ids_M)


SPOILED: dict[str, tuple[str, Method]] = {
    "counts computed rows": ("shared_prefixes", spoiled(objective=CountsComputedRows())),
}
