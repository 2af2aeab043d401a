"""The same bits again on a GPU."""

import os
from collections.abc import Callable
from weakref import finalize

import torch

_asked = 0  # by how many runs that are not at their end
_before = (False, False, True)  # torch's settings before the first of them: whether, only with a warning, fill


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
        filled: bool = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        _before = (torch.are_deterministic_algorithms_enabled(), warns, filled)
    _asked += 1
    _set(True, False, False)  # no tensor here is read before it is written
    return finalize(owner, _end)


def _end() -> None:
    global _asked
    _asked -= 1
    if not _asked:
        _set(*_before)


def _set(deterministic: bool, warns: bool, fill: bool) -> None:
    torch.use_deterministic_algorithms(deterministic, warn_only=warns)
    torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
