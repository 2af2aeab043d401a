"""Several processes that take one optimiser step together.

Every rank holds the whole batch and forwards its own share of the sequences. Statistics and gradients are summed over
the ranks, so every rank computes the same slopes and takes the same step. Denominators are counted over the whole
batch, so nothing depends on the number of ranks. Weights are whole on every rank or, in a run, sharded
(`gruppo.scale.shard`): then a rank holds its own part of every weight, and FSDP adds up the gradients.
"""

import atexit
import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

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
        """Sum each tensor over all ranks, in place. Gradients of sharded weights are sums already."""
        if self.size > 1:
            for x in tensors:
                if not sharded(x):
                    dist.all_reduce(x)

    def gathered(self, x: Tensor) -> Tensor:
        """A sharded tensor, whole and in main memory on the first rank, empty on the others; any other as it is."""
        if not sharded(x):
            return x
        full = whole(x).detach()  # all ranks take part
        return full.cpu() if self.rank == 0 else full.new_empty(0)

    @torch.no_grad()
    def put(self, x: Tensor, value: Tensor) -> None:
        """Write a whole value into a tensor; into a sharded one that of the first rank. The others give a meta one."""
        if not sharded(x):
            x.copy_(value)
            return
        from torch.distributed.tensor import distribute_tensor

        full = torch.empty(x.shape, dtype=x.dtype) if value.is_meta else value.to("cpu", x.dtype).contiguous()
        dist.broadcast(full, 0)
        mine: Any = x
        here = distribute_tensor(full.to(x.device), mine.device_mesh, mine.placements, src_data_rank=None)
        local(x).copy_(local(here))

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


def sharded(x: Tensor) -> bool:
    """Whether every rank holds a part of it (a DTensor)."""
    return hasattr(x, "full_tensor")


def whole(x: Tensor) -> Tensor:
    """All of a tensor, on every rank; all of them must ask for it."""
    return x.full_tensor() if sharded(x) else x  # type: ignore[attr-defined]


def local(x: Tensor) -> Tensor:
    """The part of a tensor that this rank holds."""
    return x.to_local() if sharded(x) else x  # type: ignore[attr-defined]


def ranks() -> Ranks:
    """This process among those that `torchrun` has started. To be called before a model is put on a GPU."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Ranks()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        atexit.register(_part)
    return Ranks(dist.get_rank(), size)


def _part() -> None:
    """Gloo's threads end before Python does: else about one exit in thirty of a busy machine is an abort."""
    if dist.is_initialized():
        dist.destroy_process_group()
