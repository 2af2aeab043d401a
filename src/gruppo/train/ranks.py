"""Several processes that learn one step together.

Every rank holds the whole batch and forwards its own share of the sequences. Statistics and gradients are added over
the ranks, so every rank computes the same slopes, takes the same step and keeps the same weights. Denominators are
counted over the batch, so nothing depends on the number of ranks.
"""

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class Ranks:
    """One process alone, or one of several under `torchrun`."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    def mine(self, shares: Sequence[Sequence[T]], filler: T) -> list[tuple[T, bool]]:
        """The parts of this rank's share, and whether each counts.

        All ranks have the same number of parts: wrappers that talk to each other in every forward would wait for ever
        for a rank that has no more. Where there is none left, the filler is computed and not counted.
        """
        here = [(part, True) for part in shares[self.rank]]
        return here + [(filler, False)] * (max(map(len, shares)) - len(here))

    def added(self, tensors: Iterable[Tensor]) -> None:
        """Add these tensors over all ranks, in place."""
        if self.size > 1:
            for x in tensors:
                dist.all_reduce(x)

    def added_tally(self, sums: dict[str, float], counts: dict[str, float], name: str) -> None:
        """Add what each rank has counted of a metric; of NAME_max, the largest counts."""
        if self.size == 1:
            return
        both = torch.tensor([sums.get(name, 0.0), counts.get(name, 0.0)], dtype=torch.float64)
        most = torch.tensor(sums.get(f"{name}_max", 0.0), dtype=torch.float64)
        dist.all_reduce(both)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        if both[1] > 0:
            sums[name], counts[name] = both.tolist()
            sums[f"{name}_max"], counts[f"{name}_max"] = float(most), 1.0


def ranks() -> Ranks:
    """This process among those that `torchrun` has started; alone without it."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Ranks()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return Ranks(dist.get_rank(), size)
