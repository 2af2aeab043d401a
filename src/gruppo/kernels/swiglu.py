"""silu(gate) ⊙ up: for decoding, of a product with the stacked weights of both; for training, with its gradient."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gruppo.kernels.language import jit, runs_on, tl

BLOCK = 1024


def swiglu_plain(both_BF: Tensor) -> Tensor:
    gate, up = both_BF.chunk(2, -1)
    return F.silu(gate) * up


def swiglu(both_BF: Tensor) -> Tensor:
    """(B, 2F), gates first, to (B, F)."""
    if not runs_on(both_BF):
        return swiglu_plain(both_BF)
    rows, size = both_BF.shape[0], both_BF.shape[1] // 2
    out_BF = both_BF.new_empty(rows, size)
    _forward[(rows, -(-size // BLOCK))](both_BF, both_BF[:, size:], out_BF, 2 * size, size, BLOCK, num_warps=4)
    return out_BF


def silu_times(gate_XF: Tensor, up_XF: Tensor) -> Tensor:
    """silu(gate) ⊙ up with its gradient; for the backward pass only the two factors are kept."""
    if not (gate_XF.is_cuda and runs_on(gate_XF)):
        return F.silu(gate_XF) * up_XF
    return _SiluTimes.apply(gate_XF, up_XF)  # type: ignore[no-any-return]


class _SiluTimes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_XF: Tensor, up_XF: Tensor) -> Tensor:
        ctx.save_for_backward(gate_XF, up_XF)
        rows, size = gate_XF.shape
        out_XF = torch.empty_like(gate_XF)
        _forward[(rows, -(-size // BLOCK))](gate_XF, up_XF, out_XF, size, size, BLOCK, num_warps=4)
        return out_XF

    @staticmethod
    def backward(ctx: Any, grad_XF: Tensor) -> Any:  # type: ignore[override]
        gate_XF, up_XF = ctx.saved_tensors
        rows, size = gate_XF.shape
        to_gate, to_up = torch.empty_like(gate_XF), torch.empty_like(up_XF)
        given = (gate_XF, up_XF, grad_XF.contiguous(), to_gate, to_up)
        _backward[(rows, -(-size // BLOCK))](*given, size, BLOCK, num_warps=4)
        return to_gate, to_up


@jit
def _forward(gates, ups, out, STRIDE: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = f < SIZE
    gate = tl.load(gates + row * STRIDE + f, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(ups + row * STRIDE + f, mask=inside, other=0.0)
    # Rounded in between, as the plain twin does.
    act = (gate * tl.sigmoid(gate)).to(up.dtype)
    tl.store(out + row * SIZE + f, act * up, mask=inside)


@jit
def _backward(gates, ups, grads, to_gate, to_up, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * SIZE
    f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = f < SIZE
    gate = tl.load(gates + row + f, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(ups + row + f, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grads + row + f, mask=inside, other=0.0).to(tl.float32)
    half = tl.sigmoid(gate)
    tl.store(to_up + row + f, (grad * gate * half).to(to_up.dtype.element_ty), mask=inside)
    slope = half * (1 + gate * (1 - half))
    tl.store(to_gate + row + f, (grad * up * slope).to(to_gate.dtype.element_ty), mask=inside)
