"""x ← x + y and its RMSNorm in one pass: w · x / √(mean x² + eps)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from gruppo.kernels.language import jit, power_of_two, runs_on, tl


def add_norm_plain(x_BD: Tensor, y_BD: Tensor | None, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x_BD = x_BD if y_BD is None else x_BD + y_BD
    return x_BD, F.rms_norm(x_BD, weight_D.shape, weight_D, eps)


def add_norm(x_BD: Tensor, y_BD: Tensor | None, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(the sum, its norm). The sum is written over `x_BD`; without `y_BD` it is `x_BD`."""
    if not runs_on(x_BD):
        return add_norm_plain(x_BD, y_BD, weight_D, eps)
    rows, dim = x_BD.shape
    out_BD = x_BD.new_empty(rows, dim)
    size = power_of_two(dim)
    warps = min(max(size // 512, 1), 8)
    _add_norm[(rows,)](x_BD, y_BD, weight_D, out_BD, eps, dim, size, y_BD is not None, num_warps=warps)
    return x_BD, out_BD


@jit
def _add_norm(x, y, weight, out, eps, D: tl.constexpr, SIZE: tl.constexpr, ADD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * D
    d = tl.arange(0, SIZE)
    inside = d < D
    sum_ = tl.load(x + row + d, mask=inside, other=0.0)
    if ADD:
        sum_ += tl.load(y + row + d, mask=inside, other=0.0)
        tl.store(x + row + d, sum_, mask=inside)
    wide = sum_.to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(wide * wide, 0) / D + eps)
    w = tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + d, (wide * scale * w).to(out.dtype.element_ty), mask=inside)
