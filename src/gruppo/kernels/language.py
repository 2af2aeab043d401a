"""Triton where it is installed; without it the plain twins run."""

import os
from typing import Any

import torch
from torch import Tensor

try:
    import triton  # type: ignore[import-not-found]
    import triton.language as tl  # type: ignore[import-not-found]
except ImportError:
    triton: Any = None
    tl: Any = None
try:
    import triton.language.extra.cuda as cuda  # type: ignore[import-not-found]
except ImportError:
    cuda: Any = None
# Programmatic dependent launch: newer than Triton itself.
gdc_wait: Any = getattr(cuda, "gdc_wait", None)
gdc_launch_dependents: Any = getattr(cuda, "gdc_launch_dependents", None)

# Triton's interpreter runs kernels on a CPU, slowly: for tests.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def jit(kernel: Any) -> Any:
    return kernel if triton is None else triton.jit(kernel)


def jit_once(*numbers: str) -> Any:
    """`jit` for kernels with arguments, named here, that must not make a new version for 1 or for multiples of 16."""
    return (lambda kernel: kernel) if triton is None else triton.jit(do_not_specialize=list(numbers))


def runs_on(x: Tensor) -> bool:
    """Whether kernels can be launched on such tensors. They add in float32, so float64 is for the twins."""
    return triton is not None and x.dtype != torch.float64 and (x.is_cuda or INTERPRETED)


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def can_chain(x: Tensor) -> bool:
    """Whether a kernel may begin before the one in front of it has ended (and then waits for it by `gdc_wait`)."""
    return gdc_wait is not None and x.is_cuda and torch.cuda.get_device_capability(x.device)[0] >= 9


def launched(chain: bool) -> dict[str, Any]:
    return {"launch_pdl": True} if chain else {}


_ARRIVALS: dict[torch.device, Tensor] = {}
MOST_ARRIVALS = 1 << 16


def arrivals(device: torch.device, count: int) -> Tensor:
    """Counters of programs that have written their part of a sum. The last one sets its counter to 0 again."""
    assert count <= MOST_ARRIVALS
    if device not in _ARRIVALS:
        _ARRIVALS[device] = torch.zeros(MOST_ARRIVALS, dtype=torch.int32, device=device)
    return _ARRIVALS[device]
