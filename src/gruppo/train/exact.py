"""The same bits again on a GPU."""

import os

import torch


def be_deterministic() -> None:
    """Sums in a fixed order: sorted instead of atomic additions, and matrix products that use no shared workspace.

    It holds for the rest of the process. A kernel of torch that has no such version raises, and names itself.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # no tensor here is read before it is written
