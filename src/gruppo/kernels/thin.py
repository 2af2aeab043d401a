"""Linear layers of few rows, for decoding: norms before them, gates and sums after them, in one kernel each.

    norm_linear   norm(x) Wᵀ + b
    norm_swiglu   silu(norm(x) Gᵀ) ⊙ norm(x) Uᵀ
    add_linear    x ← x + h Wᵀ + b

With few rows such a layer is not bound by arithmetic but by the start of kernels and by the way to memory. So a program
asks for its weights first, and only then waits for the kernel in front of it (programmatic dependent launch, on
Hopper): the weights arrive while that one ends.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gruppo.kernels.language import (
    arrivals,
    can_chain,
    gdc_launch_dependents,
    gdc_wait,
    jit,
    launched,
    power_of_two,
    runs_on,
    tl,
)
from gruppo.kernels.norm import add_norm_plain
from gruppo.kernels.swiglu import swiglu_plain

HALF = (torch.bfloat16, torch.float16)
# A step of 0.5 B takes 0.60, 0.79 and 1.16 ms with 1, 2 and 4 rows, by the kernels for many rows 1.00 to 1.01; one of
# 1.5 B 1.34 and 2.42 ms with 1 and 2 rows, by those for many 1.76 and 1.75. So both are bounded.
MOST = 2  # rows
HELD = 2048  # numbers of x that a program holds: whole rows, for their norm
COLUMNS = 8  # of the result, for a program
PIECE = 1024  # columns of h that a program of `add_linear` multiplies; wider ones are split
WARPS = 4


def fits(x_BD: Tensor) -> bool:
    """Whether these kernels are meant for such rows."""
    rows, dim = x_BD.shape
    return x_BD.dtype in HALF and rows <= MOST and rows * power_of_two(dim) <= HELD and runs_on(x_BD)


def norm_linear_plain(x_BD: Tensor, norm_D: Tensor, eps: float, weight_XD: Tensor, bias_X: Tensor | None) -> Tensor:
    return F.linear(add_norm_plain(x_BD, None, norm_D, eps)[1], weight_XD, bias_X)


def norm_linear(x_BD: Tensor, norm_D: Tensor, eps: float, weight_XD: Tensor, bias_X: Tensor | None) -> Tensor:
    if not fits(x_BD):
        return norm_linear_plain(x_BD, norm_D, eps, weight_XD, bias_X)
    return _norm_product(x_BD, norm_D, eps, weight_XD, bias_X, len(weight_XD), False)


def norm_swiglu_plain(x_BD: Tensor, norm_D: Tensor, eps: float, weight_2FD: Tensor) -> Tensor:
    return swiglu_plain(F.linear(add_norm_plain(x_BD, None, norm_D, eps)[1], weight_2FD))


def norm_swiglu(x_BD: Tensor, norm_D: Tensor, eps: float, weight_2FD: Tensor) -> Tensor:
    """The weights of the gates come first."""
    if not fits(x_BD):
        return norm_swiglu_plain(x_BD, norm_D, eps, weight_2FD)
    return _norm_product(x_BD, norm_D, eps, weight_2FD, None, len(weight_2FD) // 2, True)


def _norm_product(
    x_BD: Tensor, norm_D: Tensor, eps: float, weight_XD: Tensor, bias_X: Tensor | None, size: int, gated: bool
) -> Tensor:
    (rows, dim), chain = x_BD.shape, can_chain(x_BD)
    out_BX = x_BD.new_empty(rows, size)
    _normed[(-(-size // COLUMNS),)](
        x_BD, norm_D, weight_XD, out_BX if bias_X is None else bias_X, out_BX, eps,
        rows, dim, size, COLUMNS, power_of_two(dim), bias_X is not None, gated, chain,
        num_warps=WARPS, **launched(chain),
    )  # fmt: skip
    return out_BX


def add_linear_plain(x_BD: Tensor, h_BK: Tensor, weight_DK: Tensor, bias_D: Tensor | None) -> Tensor:
    return x_BD.add_(F.linear(h_BK, weight_DK, bias_D))


def add_linear(x_BD: Tensor, h_BK: Tensor, weight_DK: Tensor, bias_D: Tensor | None) -> Tensor:
    """The sum is written over `x_BD`. Pieces of wide rows are added in their order by whoever comes last."""
    if not fits(x_BD):
        return add_linear_plain(x_BD, h_BK, weight_DK, bias_D)
    (rows, dim), wide, chain = x_BD.shape, h_BK.shape[1], can_chain(x_BD)
    piece = min(power_of_two(wide), PIECE)
    splits, tiles = -(-wide // piece), -(-dim // COLUMNS)
    part = x_BD if splits == 1 else x_BD.new_empty(splits * rows * dim, dtype=torch.float32)
    _added[(tiles, splits)](
        x_BD, h_BK, weight_DK, x_BD if bias_D is None else bias_D, part, arrivals(x_BD.device, tiles),
        rows, wide, dim, splits, COLUMNS, piece, bias_D is not None, chain, num_warps=WARPS, **launched(chain),
    )  # fmt: skip
    return x_BD


@jit
def _normed(
    x, norm, weight, bias, out, eps,
    ROWS: tl.constexpr, K: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr, SIZE: tl.constexpr, BIAS: tl.constexpr,
    GATED: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    c, k = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, SIZE)
    wanted = (c < N)[:, None] & (k < K)[None, :]
    at = weight + c[:, None].to(tl.int64) * K + k[None, :]
    w = tl.load(at, mask=wanted, other=0.0)
    if GATED:
        u = tl.load(at + N * K, mask=wanted, other=0.0)
    g = tl.load(norm + k, mask=k < K, other=0.0).to(tl.float32)
    if CHAIN:
        gdc_wait()
        gdc_launch_dependents()
    for r in tl.static_range(ROWS):
        x_ = tl.load(x + r * K + k, mask=k < K, other=0.0).to(tl.float32)
        h = (x_ / tl.sqrt(tl.sum(x_ * x_, 0) / K + eps) * g).to(w.dtype).to(tl.float32)[None, :]
        y = tl.sum(w.to(tl.float32) * h, 1)
        if BIAS:
            y += tl.load(bias + c, mask=c < N, other=0.0).to(tl.float32)
        if GATED:  # rounded in between, as the plain twin does
            z = tl.sum(u.to(tl.float32) * h, 1).to(w.dtype).to(tl.float32)
            y = y.to(w.dtype).to(tl.float32)
            y = (y * tl.sigmoid(y)).to(w.dtype).to(tl.float32) * z
        tl.store(out + r * N + c, y.to(out.dtype.element_ty), mask=c < N)


@jit
def _added(
    x, h, weight, bias, part, came,
    ROWS: tl.constexpr, K: tl.constexpr, N: tl.constexpr, SPLITS: tl.constexpr, COLUMNS: tl.constexpr,
    PIECE: tl.constexpr, BIAS: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1)
    c, k = tile * COLUMNS + tl.arange(0, COLUMNS), split * PIECE + tl.arange(0, PIECE)
    mine = c < N
    w = tl.load(weight + c[:, None].to(tl.int64) * K + k[None, :], mask=mine[:, None] & (k < K)[None, :], other=0.0)
    if CHAIN:
        gdc_wait()
        gdc_launch_dependents()
    for r in tl.static_range(ROWS):
        h_ = tl.load(h + r * K + k, mask=k < K, other=0.0).to(tl.float32)
        y = tl.sum(w.to(tl.float32) * h_[None, :], 1)
        if SPLITS == 1:
            _finish(x + r * N + c, bias + c, y, mine, BIAS)
        else:
            tl.store(part + (split * ROWS + r) * N + c, y, mask=mine)
    if SPLITS > 1:
        tl.debug_barrier()  # all of this program has written before it counts
        if tl.atomic_add(came + tile, 1, sem="acq_rel") == SPLITS - 1:
            tl.store(came + tile, 0)
            for r in tl.static_range(ROWS):
                y = tl.zeros((COLUMNS,), tl.float32)
                for i in tl.static_range(SPLITS):
                    y += tl.load(part + (i * ROWS + r) * N + c, mask=mine, other=0.0, cache_modifier=".cg")
                _finish(x + r * N + c, bias + c, y, mine, BIAS)


@jit
def _finish(x, bias, y, mine, BIAS: tl.constexpr):
    """x ← x + y + bias."""
    if BIAS:
        y += tl.load(bias, mask=mine, other=0.0).to(tl.float32)
    y += tl.load(x, mask=mine, other=0.0).to(tl.float32)
    tl.store(x, y.to(x.dtype.element_ty), mask=mine)
