"""Attention of one new token per row over a cache of pages: norms of q and k, rotary positions, cache write, softmax.

A page holds PAGE positions of one layer; `table_BP` lists the pages of each row, so rows may share them. The new key
and value are written to the cache and used from registers; nothing beyond a row's position is read.

A program reads the pages of a row one after the other, so the longest row would decide when all are done. Rows that are
much longer than the others are shared by several programs (`shares`), and the last of them joins their parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.kernels.language import (
    arrivals,
    can_chain,
    gdc_launch_dependents,
    gdc_wait,
    jit,
    jit_once,
    launched,
    power_of_two,
    runs_on,
    tl,
)

PAGE = 64  # positions that a program reads at once, by one lookup of their address; 32 take 5 to 9 % longer
PROGRAMS = 512  # they fill a GPU; rows are shared by about so many more than there are rows
MOST_PARTS = 8  # of a row
MOST_ROWS = 1024  # for which one version of `_share` is compiled
STAGES = 2  # one page is read while the next is on its way; with three, 256 rows of 0.5 B took 13 % longer


@dataclass(frozen=True)
class Heads:
    """Shapes of the attention of a model."""

    heads: int
    kv_heads: int
    dim: int
    eps: float = 1e-6


@dataclass(frozen=True)
class Rope:
    """Tables (positions, dim), float32; the sine carries the sign of the half that it multiplies."""

    cos: Tensor
    sin: Tensor


def attend_plain(
    qkv_BX: Tensor, h: Heads, rope: Rope, norms: tuple[Tensor, Tensor] | None, pos_B: Tensor, table_BP: Tensor,
    keys: Tensor, values: Tensor,
) -> Tensor:  # fmt: skip
    rows = len(qkv_BX)
    x = qkv_BX.view(rows, -1, h.dim).float()
    q, k, v = x.split([h.heads, h.kv_heads, h.kv_heads], 1)
    if norms is not None:
        q, k = (
            y * torch.rsqrt(y.square().mean(-1, keepdim=True) + h.eps) * w.float()
            for y, w in zip((q, k), norms, strict=True)
        )
    cos, sin = rope.cos[pos_B][:, None].float(), rope.sin[pos_B][:, None].float()
    q, k = ((y * cos + y.roll(h.dim // 2, -1) * sin).to(keys.dtype) for y in (q, k))
    page = table_BP[torch.arange(rows, device=pos_B.device), pos_B // PAGE].long()
    keys[page, :, pos_B % PAGE] = k
    values[page, :, pos_B % PAGE] = v.to(values.dtype)
    out = []
    for b in range(rows):
        n = int(pos_B[b]) + 1
        pages = table_BP[b, : -(-n // PAGE)].long()
        # (pages, heads, PAGE, dim) → (heads, n, dim)
        ks, vs = (c[pages].transpose(0, 1).reshape(h.kv_heads, -1, h.dim)[:, :n].float() for c in (keys, values))
        group = q[b].float().view(h.kv_heads, -1, h.dim)
        p = torch.softmax(group @ ks.transpose(1, 2) * h.dim**-0.5, -1)
        out.append((p @ vs).reshape(-1))
    return torch.stack(out).to(qkv_BX.dtype)


def shares_plain(pos_B: Tensor, kv_heads: int) -> Tensor:
    extra = max(PROGRAMS // kv_heads, 1)
    pages_B = (-(-pos_B // PAGE)).clamp(min=1)
    parts_B = -(-pages_B // max(-(-int(pages_B.sum()) // extra), 1))
    each_B = -(-pages_B // parts_B.clamp(max=MOST_PARTS))
    parts_B = -(-pages_B // each_B)  # none is empty
    row_E = torch.repeat_interleave(parts_B)
    part_E = torch.arange(len(row_E), device=pos_B.device) - (parts_B.cumsum(0) - parts_B)[row_E]
    out = torch.full((len(pos_B) + extra,), -1, dtype=torch.int32, device=pos_B.device)
    out[: len(row_E)] = (row_E * 256 + part_E * 16 + parts_B[row_E]).int()
    return out


def shares(pos_B: Tensor, kv_heads: int) -> Tensor:
    """What each program of `attend` reads: 256 · row + 16 · part + parts of the row; -1: nothing.

    Rows of one length have one part each. It is the same for all layers of a step.
    """
    if not runs_on(pos_B):
        return shares_plain(pos_B, kv_heads)
    rows, extra = len(pos_B), max(PROGRAMS // kv_heads, 1)
    out = torch.empty(rows + extra, dtype=torch.int32, device=pos_B.device)
    size = max(power_of_two(rows), MOST_ROWS)
    _share[(1,)](pos_B, out, rows, rows + extra, size, power_of_two(size + extra), extra, PAGE, MOST_PARTS, num_warps=8)
    return out


def attend(
    qkv_BX: Tensor, h: Heads, rope: Rope, norms: tuple[Tensor, Tensor] | None, pos_B: Tensor, table_BP: Tensor,
    keys: Tensor, values: Tensor, shares_E: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """(B, heads · dim) of new tokens at `pos_B` (int64). Keys and values are (pages, kv_heads, PAGE, dim).

    `shares_E`, if they are given, must be older than the kernel before this one, which this one does not wait for.
    """
    if not runs_on(qkv_BX):
        return attend_plain(qkv_BX, h, rope, norms, pos_B, table_BP, keys, values)
    rows, group = len(qkv_BX), h.heads // h.kv_heads
    out_BX = qkv_BX.new_empty(rows, h.heads * h.dim)
    q_size, d_size = max(power_of_two(group), 16), max(power_of_two(h.dim), 16)  # the least that tensor cores take
    weights, chain = norms or (out_BX, out_BX), shares_E is not None and can_chain(qkv_BX)
    shares_E = shares(pos_B, h.kv_heads) if shares_E is None else shares_E
    width = d_size * keys.element_size()
    programs, small = len(shares_E), qkv_BX.dtype != torch.float32  # two loops of float32 have too few registers
    part = torch.empty(programs * h.kv_heads * q_size * (d_size + 2), dtype=torch.float32, device=out_BX.device)
    _attend[(programs, h.kv_heads)](
        qkv_BX, rope.cos, rope.sin, *weights, pos_B, table_BP, keys, values, out_BX, shares_E, part,
        arrivals(out_BX.device, rows * h.kv_heads), h.eps, h.dim**-0.5, table_BP.stride(0),
        h.heads, h.kv_heads, group, q_size, h.dim, d_size, PAGE, MOST_PARTS,
        norms is not None, "tf32" if small else "ieee", chain, small,
        num_warps=_warps(width), num_stages=STAGES, **launched(chain),
    )  # fmt: skip
    return out_BX


def _warps(width: int) -> int:
    """Of a row of keys of so many bytes. Few, so that all programs of 256 rows are resident at once.

    Over 256 positions the layers of 0.5 B (heads of 64) took 316 us with one warp, 346 with two, 344 with four; those
    of 1.5 B (heads of 128) took 597 with two, 723 with four. Numbers of float32 need twice the registers.
    """
    return min(max(width // 128, 1), 4)


@jit
def _turned(base, norm, cos, sin, eps, d, inside, live, D: tl.constexpr, NORM: tl.constexpr):
    """Rows of `base` after their norm and rotation, in float32."""
    other = (d + D // 2) % D
    x = tl.load(base[:, None] + d[None, :], mask=live, other=0.0).to(tl.float32)
    y = tl.load(base[:, None] + other[None, :], mask=live, other=0.0).to(tl.float32)
    if NORM:
        scale = 1 / tl.sqrt(tl.sum(x * x, 1) / D + eps)
        x = x * scale[:, None] * tl.load(norm + d, mask=inside, other=0.0).to(tl.float32)[None, :]
        y = y * scale[:, None] * tl.load(norm + other, mask=inside, other=0.0).to(tl.float32)[None, :]
    return x * cos[None, :] + y * sin[None, :]


@jit_once("rows", "count")
def _share(
    pos, out, rows, count, ROWS: tl.constexpr, SIZE: tl.constexpr, EXTRA: tl.constexpr,
    PAGE: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    row, e = tl.arange(0, ROWS), tl.arange(0, SIZE)
    pages = tl.maximum((tl.load(pos + row, mask=row < rows, other=0) + PAGE - 1) // PAGE, 1).to(tl.int32)
    pages = tl.where(row < rows, pages, 0)
    usual = tl.maximum((tl.sum(pages, 0) + EXTRA - 1) // EXTRA, 1)
    parts = tl.maximum(tl.minimum((pages + usual - 1) // usual, MOST), 1)
    each = tl.maximum((pages + parts - 1) // parts, 1)
    parts = (pages + each - 1) // each
    first = tl.cumsum(parts, 0) - parts
    for i in tl.static_range(MOST):
        tl.store(out + first + i, row * 256 + i * 16 + parts, mask=i < parts)
    tl.store(out + e, tl.full((SIZE,), -1, tl.int32), mask=(e >= tl.sum(parts, 0)) & (e < count))


@jit
def _attend(
    qkv, cos, sin, q_norm, k_norm, pos, table, keys, values, out, shares, part, came, eps, scale, stride,
    HEADS: tl.constexpr, KV: tl.constexpr, GROUP: tl.constexpr, Q: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    PAGE: tl.constexpr, MOST: tl.constexpr, NORM: tl.constexpr, PRECISION: tl.constexpr,
    CHAIN: tl.constexpr, BARE: tl.constexpr,
):  # fmt: skip
    share = tl.load(shares + tl.program_id(0))
    if share < 0:
        if CHAIN:
            gdc_launch_dependents()
        return
    row, h, split, splits = (share // 256).to(tl.int64), tl.program_id(1), share // 16 % 16, share % 16
    at = tl.load(pos + row)
    d, g, t = tl.arange(0, DP), tl.arange(0, Q), tl.arange(0, PAGE)
    inside, live = d < D, (g < GROUP)[:, None] & (d < D)[None, :]
    c = tl.load(cos + at * D + d, mask=inside, other=0.0)
    s = tl.load(sin + at * D + d, mask=inside, other=0.0)
    base = qkv + row * (HEADS + 2 * KV) * D
    kind = keys.dtype.element_ty
    if CHAIN:
        gdc_wait()
        gdc_launch_dependents()
    q = _turned(base + (h * GROUP + g) * D, q_norm, c, s, eps, d, inside, live, D, NORM).to(kind)
    one = tl.zeros((1,), tl.int32)
    k = _turned(base + (HEADS + h) * D + one, k_norm, c, s, eps, d, inside, inside[None, :], D, NORM).to(kind)
    v = tl.load(base + (HEADS + KV + h) * D + d, mask=inside, other=0.0)
    m = tl.full((Q,), float("-inf"), tl.float32)
    total = tl.zeros((Q,), tl.float32)
    acc = tl.zeros((Q, DP), tl.float32)
    if split == 0:
        page = tl.load(table + row * stride + at // PAGE).to(tl.int64)
        cell = ((page * KV + h) * PAGE + at % PAGE) * D + d
        tl.store(keys + cell[None, :], k, mask=inside[None, :])
        tl.store(values + cell, v.to(kind), mask=inside)
        m = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1) * scale
        total += 1.0
        acc += v.to(tl.float32)[None, :]
    pages = (at + PAGE - 1) // PAGE
    each = (pages + splits - 1) // splits
    end = tl.minimum((split + 1) * each, pages)
    whole = tl.minimum(end, at // PAGE) if BARE else end
    mine = table + row * stride
    page = tl.load(mine + split * each)
    tile = t[:, None] * D + d[None, :]
    for j in range(split * each, whole):
        cells, seen = (page.to(tl.int64) * KV + h) * PAGE * D + tile, j * PAGE + t < at
        page = tl.load(mine + j + 1, mask=(j + 1) * PAGE <= at, other=0)  # of the next one, while this one is read
        if BARE and D == DP:
            k_, v_ = tl.load(keys + cells), tl.load(values + cells)
        else:
            k_ = tl.load(keys + cells, mask=seen[:, None] & inside[None, :], other=0.0)
            v_ = tl.load(values + cells, mask=seen[:, None] & inside[None, :], other=0.0)
        m, total, acc = _read(q, k_, v_, seen, m, total, acc, scale, PRECISION)
    if BARE:  # noqa: SIM102
        if whole < end:  # the page that is not full: what is not written yet may be anything
            cells, seen = (page.to(tl.int64) * KV + h) * PAGE * D + tile, whole * PAGE + t < at
            k_ = tl.load(keys + cells, mask=seen[:, None] & inside[None, :], other=0.0)
            v_ = tl.load(values + cells, mask=seen[:, None] & inside[None, :], other=0.0)
            m, total, acc = _read(q, k_, v_, seen, m, total, acc, scale, PRECISION)
    where = out + row * HEADS * D + (h * GROUP + g)[:, None] * D + d[None, :]
    if splits == 1:
        tl.store(where, (acc / total[:, None]).to(out.dtype.element_ty), mask=live)
    else:
        first = part + ((tl.program_id(0) - split) * KV + h * splits) * Q * (DP + 2)
        _put(first, came + row * KV + h, split, splits, m, total, acc, g, d, where, live, Q, DP, MOST)


@jit
def _put(
    first, came, split, splits, m, total, acc, g, d, where, live,
    Q: tl.constexpr, DP: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """A part of a row; whoever is last joins them."""
    size = Q * (DP + 2)
    here = first + split * size
    tl.store(here + g, m)
    tl.store(here + Q + g, total)
    tl.store(here + 2 * Q + g[:, None] * DP + d[None, :], acc)
    tl.debug_barrier()  # all of this program has written before it counts
    if tl.atomic_add(came, 1, sem="acq_rel") == splits - 1:
        tl.store(came, 0)
        y = _joined(first, splits, size, g, d, Q, DP, MOST)
        tl.store(where, y.to(where.dtype.element_ty), mask=live)


@jit
def _read(q, k, v, seen, m, total, acc, scale, PRECISION: tl.constexpr):
    """The sums with a page more."""
    z = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    z = tl.where(seen[None, :], z, float("-inf"))
    top = tl.maximum(m, tl.max(z, 1))
    shrink = tl.exp(m - top)
    p = tl.exp(z - top[:, None])
    more = tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
    return top, total * shrink + tl.sum(p, 1), acc * shrink[:, None] + more


@jit
def _joined(first, splits, size, g, d, Q: tl.constexpr, DP: tl.constexpr, MOST: tl.constexpr):
    """The parts of all splits, added in their order."""
    s = tl.arange(0, MOST)
    used = (s < splits)[:, None]
    m = tl.load(first + s[:, None] * size + g[None, :], mask=used, other=float("-inf"), cache_modifier=".cg")
    top = tl.max(m, 0)
    total = tl.load(first + s[:, None] * size + Q + g[None, :], mask=used, other=0.0, cache_modifier=".cg")
    total = tl.sum(total * tl.exp(m - top[None, :]), 0)
    acc = tl.zeros((Q, DP), tl.float32)
    for i in tl.static_range(MOST):  # unrolled, so that all loads are under way at once
        here, mine = first + i * size, i < splits
        weight = tl.exp(tl.load(here + g, mask=mine, other=float("-inf"), cache_modifier=".cg") - top)
        cells = here + 2 * Q + g[:, None] * DP + d[None, :]
        acc += weight[:, None] * tl.load(cells, mask=mine, other=0.0, cache_modifier=".cg")
    return acc / total[:, None]
