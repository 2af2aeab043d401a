"""Several processes that take one optimiser step together.

Every rank holds the whole batch and forwards its own share of the sequences. Statistics and gradients are summed over
the ranks, so every rank computes the same slopes, takes the same step and keeps the same weights. Denominators are
counted over the whole batch, so nothing depends on the number of ranks.
"""

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


class Ranks:
    """A single process, or one of several under `torchrun`."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    def mine(self, shares: Sequence[Sequence[T]], filler: T) -> list[tuple[T, bool]]:
        """The parts of this rank's share, and whether each counts.

        All ranks get the same number of parts, because wrappers that communicate in every forward pass would wait
        forever for a rank that has finished. Missing parts are replaced by the filler, which does not count.
        """
        here = [(part, True) for part in shares[self.rank]]
        return here + [(filler, False)] * (max(map(len, shares)) - len(here))

    def added(self, tensors: Iterable[Tensor]) -> None:
        """Sum each tensor over all ranks, in place."""
        if self.size > 1:
            for x in tensors:
                dist.all_reduce(x)

    def added_tally(self, sums: dict[str, float], counts: dict[str, float], name: str) -> None:
        """Sum a metric over all ranks; NAME_max becomes the largest value."""
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
    """This process among those that `torchrun` has started. To be called before a model is put on a GPU."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Ranks()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    return Ranks(dist.get_rank(), size)
