"""The same bits again on a GPU."""

import os
from collections.abc import Callable
from typing import NamedTuple
from weakref import finalize

import torch


class Settings(NamedTuple):
    deterministic: bool = False
    warns: bool = False  # instead of raising
    fills: bool = True  # memory that is not initialised


_asked = 0  # by how many runs that are not at their end
_before = Settings()  # of torch, before the first of them


def needed(deterministic: bool, device: torch.device) -> bool:
    """Whether a run has to ask for it; a CPU gives the same bits anyhow."""
    return deterministic and device.type == "cuda"


def be_deterministic(owner: object) -> Callable[[], object]:
    """Sums in a fixed order: sorted instead of atomic additions, and matrix products that use no shared workspace.

    It holds until all who asked for it have called what this returns, or are gone: a run that comes after them in this
    process has its graphs and fast kernels again. A kernel of torch that has no such version raises, and names itself.
    """
    global _asked, _before
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
    if not _asked:
        fills: bool = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        _before = Settings(torch.are_deterministic_algorithms_enabled(), warns, fills)
    _asked += 1
    _set(Settings(deterministic=True, warns=False, fills=False))  # no tensor here is read before it is written
    return finalize(owner, _end)


def _end() -> None:
    global _asked
    _asked -= 1
    if not _asked:
        _set(_before)


def _set(to: Settings) -> None:
    torch.use_deterministic_algorithms(to.deterministic, warn_only=to.warns)
    torch.utils.deterministic.fill_uninitialized_memory = to.fills  # type: ignore[attr-defined]
