"""Rotary positions with their gradient: (a, b) → (a cos − b sin, b cos + a sin) on halves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gruppo.kernels.language import jit, power_of_two, runs_on, tl


def turn_plain(x_XHd: Tensor, cos_X1d: Tensor, sin_X1d: Tensor) -> Tensor:
    return torch.addcmul(x_XHd * cos_X1d, x_XHd.roll(x_XHd.shape[-1] // 2, -1), sin_X1d)


def turn(x_XHd: Tensor, cos_X1d: Tensor, sin_X1d: Tensor) -> Tensor:
    """`sin_X1d` carries the sign of the half that it multiplies."""
    if not (x_XHd.is_cuda and runs_on(x_XHd)):
        return turn_plain(x_XHd, cos_X1d, sin_X1d)
    return _Turn.apply(x_XHd, cos_X1d, sin_X1d)  # type: ignore[no-any-return]


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_XHd: Tensor, cos_X1d: Tensor, sin_X1d: Tensor) -> Tensor:
        ctx.save_for_backward(cos_X1d, sin_X1d)
        return _turned(x_XHd, cos_X1d, sin_X1d, 1.0)

    @staticmethod
    def backward(ctx: Any, grad_XHd: Tensor) -> Any:  # type: ignore[override]
        cos_X1d, sin_X1d = ctx.saved_tensors
        return _turned(grad_XHd, cos_X1d, sin_X1d, -1.0), None, None  # a rotation is undone by the opposite one


def _turned(x_XHd: Tensor, cos_X1d: Tensor, sin_X1d: Tensor, sign: float) -> Tensor:
    rows, heads, dim = x_XHd.shape
    if x_XHd.stride()[1:] != (dim, 1):  # rows may be apart, as those of the first heads of more
        x_XHd = x_XHd.contiguous()
    out = x_XHd.new_empty(rows, heads, dim)
    size = power_of_two(dim)
    each = max(min(power_of_two(heads), 1024 // size), 1)
    given = (x_XHd, cos_X1d, sin_X1d, out, sign, x_XHd.stride(0))
    _turn[(rows, -(-heads // each))](*given, heads, dim, size, each, num_warps=4)
    return out


@jit
def _turn(
    x, cos, sin, out, sign, stride, HEADS: tl.constexpr, D: tl.constexpr, SIZE: tl.constexpr, EACH: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    h, d = tl.program_id(1) * EACH + tl.arange(0, EACH), tl.arange(0, SIZE)
    inside = (h < HEADS)[:, None] & (d < D)[None, :]
    base = row * stride + h[:, None] * D
    c = tl.load(cos + row * D + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + row * D + d, mask=d < D, other=0.0).to(tl.float32)[None, :] * sign
    here = tl.load(x + base + d[None, :], mask=inside, other=0.0).to(tl.float32)
    there = tl.load(x + base + ((d + D // 2) % D)[None, :], mask=inside, other=0.0).to(tl.float32)
    place = out + row * HEADS * D + h[:, None] * D + d[None, :]
    tl.store(place, (here * c + there * s).to(out.dtype.element_ty), mask=inside)
