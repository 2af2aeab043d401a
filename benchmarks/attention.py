"""Variants of the attention of a decoding step, beside the kernel that is in use: microseconds, on a GPU.

    python benchmarks/attention.py [--dims 64,128] [--json FILE]

256 rows of 0.5 B (14 heads, 2 of keys, of 64 numbers) and 1.5 B (12, 2, of 128); every row at position 128, 256, 384 or
2,048, or rows of different lengths. A graph has a call for each of some layers with keys and values of their own, as in
a model, so that nothing is read from a cache. Each variant is compared with the plain twin first.

    used     `gruppo.kernels.attention.attend`, also with other numbers of warps and stages
    rows     the same loop; pages are looked up one span ahead (`ahead`), long rows are split into parts of some spans
             (`chunk`), full spans have no masks (`bare`)
    tma      spans come by the copy engine (tensor descriptors)
    ways     a warp for each of some spans, with sums of its own that are joined at the end
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
import triton.language as tl
from torch import Tensor

from gruppo.kernels import attention as used
from gruppo.kernels.attention import PAGE, Heads, Rope, _turned, attend, attend_plain, shares
from gruppo.kernels.language import INTERPRETED, arrivals
from gruppo.kernels.record import recorded

SHAPES = {64: Heads(14, 2, 64), 128: Heads(12, 2, 128)}
ROWS, LONGEST, LAYERS, MOST = 256, 2048, 8, 8


@triton.jit
def _own(qkv, cos, sin, row, h, at, scale, keys, values, table, stride, split, HEADS: tl.constexpr, KV: tl.constexpr,
         GROUP: tl.constexpr, Q: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr):  # fmt: skip
    """Queries; and the sums that begin with the new key and value, which the first part writes to the cache."""
    d, g = tl.arange(0, D), tl.arange(0, Q)
    inside, live = d < D, (g < GROUP)[:, None] & (d < D)[None, :]
    c, s = tl.load(cos + at * D + d), tl.load(sin + at * D + d)
    base = qkv + row * (HEADS + 2 * KV) * D
    q = _turned(base + (h * GROUP + g) * D, qkv, c, s, 0.0, d, inside, live, D, False).to(keys.dtype.element_ty)
    m = tl.full((Q,), float("-inf"), tl.float32)
    total, acc = tl.zeros((Q,), tl.float32), tl.zeros((Q, D), tl.float32)
    if split == 0:
        one = tl.zeros((1,), tl.int32)
        k = _turned(base + (HEADS + h) * D + one, qkv, c, s, 0.0, d, inside, inside[None, :], D, False).to(q.dtype)
        v = tl.load(base + (HEADS + KV + h) * D + d)
        page = tl.load(table + row * stride + at // PAGE).to(tl.int64)
        cell = ((page * KV + h) * PAGE + at % PAGE) * D + d
        tl.store(keys + cell[None, :], k)
        tl.store(values + cell, v)
        m = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1) * scale
        total += 1.0
        acc += v.to(tl.float32)[None, :]
    return q, m, total, acc


@triton.jit
def _more(q, k, v, seen, m, total, acc, scale):
    """One span more, joined to the sums."""
    z = tl.dot(q, tl.trans(k)) * scale
    z = tl.where(seen[None, :], z, float("-inf"))
    top = tl.maximum(m, tl.max(z, 1))
    shrink, p = tl.exp(m - top), tl.exp(z - top[:, None])
    return top, total * shrink + tl.sum(p, 1), acc * shrink[:, None] + tl.dot(p.to(v.dtype), v)


@triton.jit
def _ended(out, part, came, row, h, split, splits, m, total, acc, HEADS: tl.constexpr, KV: tl.constexpr,
           GROUP: tl.constexpr, Q: tl.constexpr, D: tl.constexpr, MOST: tl.constexpr):  # fmt: skip
    """Write the result, or a part of it that the last program of the row joins."""
    d, g = tl.arange(0, D), tl.arange(0, Q)
    live = (g < GROUP)[:, None] & (d < D)[None, :]
    where = out + row * HEADS * D + (h * GROUP + g)[:, None] * D + d[None, :]
    if splits == 1:
        tl.store(where, (acc / total[:, None]).to(out.dtype.element_ty), mask=live)
    else:
        size = Q * (D + 2)
        first = part + (row * KV + h) * MOST * size
        here = first + split * size
        tl.store(here + g, m)
        tl.store(here + Q + g, total)
        tl.store(here + 2 * Q + g[:, None] * D + d[None, :], acc)
        tl.debug_barrier()
        if tl.atomic_add(came + row * KV + h, 1, sem="acq_rel") == splits - 1:
            tl.store(came + row * KV + h, 0)
            top = tl.full((Q,), float("-inf"), tl.float32)
            total, acc = tl.zeros((Q,), tl.float32), tl.zeros((Q, D), tl.float32)
            for i in range(splits):
                other = first + i * size
                m_ = tl.load(other + g, cache_modifier=".cg")
                new = tl.maximum(top, m_)
                old, w = tl.exp(top - new), tl.exp(m_ - new)
                total = total * old + w * tl.load(other + Q + g, cache_modifier=".cg")
                cells = other + 2 * Q + g[:, None] * D + d[None, :]
                acc = acc * old[:, None] + w[:, None] * tl.load(cells, cache_modifier=".cg")
                top = new
            tl.store(where, (acc / total[:, None]).to(out.dtype.element_ty), mask=live)


@triton.jit
def _rows(qkv, cos, sin, pos, table, keys, values, out, part, came, scale, stride,
          HEADS: tl.constexpr, KV: tl.constexpr, GROUP: tl.constexpr, Q: tl.constexpr, D: tl.constexpr,
          PAGE: tl.constexpr, MOST: tl.constexpr, CHUNK: tl.constexpr, AHEAD: tl.constexpr, BARE: tl.constexpr,
          ):  # fmt: skip
    row, h, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    at = tl.load(pos + row)
    spans = tl.maximum((at + PAGE - 1) // PAGE, 1)
    splits, each = 1, spans
    if CHUNK:
        splits = tl.minimum((spans + CHUNK - 1) // CHUNK, MOST)
        each = (spans + splits - 1) // splits
        splits = (spans + each - 1) // each  # no part is empty
    if split < splits:
        d, t = tl.arange(0, D), tl.arange(0, PAGE)
        mine = table + row * stride
        begin, end = split * each, tl.minimum((split + 1) * each, spans)
        page = tl.load(mine + begin)
        q, m, total, acc = _own(
            qkv, cos, sin, row, h, at, scale, keys, values, table, stride, split, HEADS, KV, GROUP, Q, D, PAGE
        )
        tile = t[:, None] * D + d[None, :]
        whole = tl.minimum(end, at // PAGE) if BARE else end
        for j in range(begin, whole):
            if not AHEAD:
                page = tl.load(mine + j)
            cells = (page.to(tl.int64) * KV + h) * PAGE * D + tile
            if AHEAD:
                page = tl.load(mine + j + 1)
            seen = j * PAGE + t < at
            if BARE:
                k, v = tl.load(keys + cells), tl.load(values + cells)
            else:
                k = tl.load(keys + cells, mask=seen[:, None], other=0.0)
                v = tl.load(values + cells, mask=seen[:, None], other=0.0)
            m, total, acc = _more(q, k, v, seen, m, total, acc, scale)
        if BARE:  # noqa: SIM102
            if whole < end:
                page = tl.load(mine + whole)
                cells = (page.to(tl.int64) * KV + h) * PAGE * D + tile
                seen = whole * PAGE + t < at
                k = tl.load(keys + cells, mask=seen[:, None], other=0.0)
                v = tl.load(values + cells, mask=seen[:, None], other=0.0)
                m, total, acc = _more(q, k, v, seen, m, total, acc, scale)
        _ended(out, part, came, row, h, split, splits, m, total, acc, HEADS, KV, GROUP, Q, D, MOST)


@triton.jit
def _tma(key_tiles, value_tiles, qkv, cos, sin, pos, table, keys, values, out, part, came, scale, stride,
         HEADS: tl.constexpr, KV: tl.constexpr, GROUP: tl.constexpr, Q: tl.constexpr, D: tl.constexpr,
         PAGE: tl.constexpr, MOST: tl.constexpr):  # fmt: skip
    row, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.load(pos + row)
    t, d = tl.arange(0, PAGE), tl.arange(0, D)
    mine = table + row * stride
    whole = at // PAGE
    page = tl.load(mine)
    q, m, total, acc = _own(
        qkv, cos, sin, row, h, at, scale, keys, values, table, stride, 0, HEADS, KV, GROUP, Q, D, PAGE
    )
    for j in range(0, whole):
        first = (page * KV + h) * PAGE
        page = tl.load(mine + j + 1)
        k, v = key_tiles.load([first, 0]), value_tiles.load([first, 0])
        m, total, acc = _more(q, k, v, t >= 0, m, total, acc, scale)
    seen = whole * PAGE + t < at
    cells = (page.to(tl.int64) * KV + h) * PAGE * D + t[:, None] * D + d[None, :]
    k = tl.load(keys + cells, mask=seen[:, None], other=0.0)
    v = tl.load(values + cells, mask=seen[:, None], other=0.0)
    m, total, acc = _more(q, k, v, seen, m, total, acc, scale)
    _ended(out, part, came, row, h, 0, 1, m, total, acc, HEADS, KV, GROUP, Q, D, MOST)


@triton.jit
def _ways(qkv, cos, sin, pos, table, keys, values, out, part, came, scale, stride,
          HEADS: tl.constexpr, KV: tl.constexpr, GROUP: tl.constexpr, Q: tl.constexpr, D: tl.constexpr,
          PAGE: tl.constexpr, MOST: tl.constexpr, WAYS: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    row, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.load(pos + row)
    d, t, w = tl.arange(0, D), tl.arange(0, SPAN), tl.arange(0, WAYS)
    mine = table + row * stride
    q, m0, total0, acc0 = _own(
        qkv, cos, sin, row, h, at, scale, keys, values, table, stride, 0, HEADS, KV, GROUP, Q, D, PAGE
    )
    q3 = tl.broadcast_to(q[None, :, :], (WAYS, Q, D))
    m = tl.full((WAYS, Q), -1e30, tl.float32)
    total, acc = tl.zeros((WAYS, Q), tl.float32), tl.zeros((WAYS, Q, D), tl.float32)
    for j in range(0, (at + WAYS * SPAN - 1) // (WAYS * SPAN)):
        first = (j * WAYS + w) * SPAN
        page = tl.load(mine + first // PAGE, mask=first < at, other=0).to(tl.int64)
        start = ((page * KV + h) * PAGE + first % PAGE) * D
        cells = start[:, None, None] + t[None, :, None] * D + d[None, None, :]
        seen = first[:, None] + t[None, :] < at
        k = tl.load(keys + cells, mask=seen[:, :, None], other=0.0)
        v = tl.load(values + cells, mask=seen[:, :, None], other=0.0)
        z = tl.dot(q3, tl.permute(k, (0, 2, 1))) * scale
        z = tl.where(seen[:, None, :], z, float("-inf"))
        top = tl.maximum(m, tl.max(z, 2))
        shrink, p = tl.exp(m - top), tl.exp(z - top[:, :, None])
        total = total * shrink + tl.sum(p, 2)
        acc = acc * shrink[:, :, None] + tl.dot(p.to(v.dtype), v)
        m = top
    top = tl.maximum(m0, tl.max(m, 0))
    share, own = tl.exp(m - top[None, :]), tl.exp(m0 - top)
    acc = tl.sum(acc * share[:, :, None], 0) + acc0 * own[:, None]
    total = tl.sum(total * share, 0) + total0 * own
    _ended(out, part, came, row, h, 0, 1, top, total, acc, HEADS, KV, GROUP, Q, D, MOST)


class Case:
    """Rows of one shape: queries, pages, keys and values of some layers."""

    def __init__(self, dim: int, device: torch.device, rows: int = ROWS, layers: int = LAYERS) -> None:
        draw = torch.Generator(device).manual_seed(0)
        h = self.h = SHAPES[dim]
        pages = LONGEST // PAGE + 2
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        angle = torch.rand(LONGEST + PAGE, dim, device=device, generator=draw)
        self.rope = Rope(angle.cos(), angle.sin())
        self.qkv = torch.randn(rows, (h.heads + 2 * h.kv_heads) * dim, device=device, generator=draw).to(dtype)
        order = torch.randperm(rows * pages, device=device, generator=draw) + 1
        self.table = order.view(rows, pages).int()
        self.pos = torch.zeros(rows, dtype=torch.int64, device=device)
        size = (layers, 2, rows * pages + 1, h.kv_heads, PAGE, dim)
        self.kv = torch.empty(size, dtype=dtype, device=device).normal_(generator=draw)
        self.out = self.qkv.new_empty(rows, h.heads * dim)
        self.part = torch.empty(rows * h.kv_heads * MOST * 16 * (dim + 2), device=device)
        self.tiles: list[Any] = []
        self.shares: Tensor | None = None

    def positions(self, at: int) -> None:
        if at:
            self.pos.fill_(at)
        else:  # rows of ragged work: some way into answers whose lengths are geometric
            draw = torch.Generator(self.pos.device).manual_seed(1)
            length = -256 * torch.rand(len(self.pos), device=self.pos.device, generator=draw).log()
            more = -256 * torch.rand(len(self.pos), device=self.pos.device, generator=draw).log()
            self.pos.copy_((128 + length + more).clamp(max=LONGEST - 1).long())

    def used(self, layer: int, warps: int | None = None, stages: int | None = None) -> Tensor:
        """As in a step: who reads what is known since the first layer."""
        if layer == 0 or self.shares is None:
            self.shares = shares(self.pos, self.h.kv_heads)
        given = (self.qkv, self.h, self.rope, None, self.pos, self.table, *self.kv[layer], self.shares)
        if warps is None:
            return attend(*given)
        with patch.object(used, "STAGES", stages), patch.object(used, "_warps", lambda _: warps):
            return attend(*given)

    def twin(self) -> Tensor:
        return attend_plain(self.qkv, self.h, self.rope, None, self.pos, self.table, *self.kv[0])

    def call(self, kernel: Any, layer: int, grid: tuple[int, ...], tiles: bool, **how: Any) -> Tensor:
        h, (keys, values) = self.h, self.kv[layer]
        first = []
        if tiles:
            from triton.tools.tensor_descriptor import TensorDescriptor

            first = [TensorDescriptor.from_tensor(x.view(-1, h.dim), [PAGE, h.dim]) for x in (keys, values)]
            self.tiles.append(first)
        kernel[grid](
            *first, self.qkv, self.rope.cos, self.rope.sin, self.pos, self.table, keys, values, self.out, self.part,
            arrivals(self.out.device, ROWS * h.kv_heads), h.dim**-0.5, self.table.stride(0),
            HEADS=h.heads, KV=h.kv_heads, GROUP=h.heads // h.kv_heads, Q=16, D=h.dim, PAGE=PAGE, MOST=MOST, **how,
        )  # fmt: skip
        return self.out


def variants(case: Case) -> dict[str, Callable[[int], Tensor]]:
    rows, kv, dim = len(case.pos), case.h.kv_heads, case.h.dim
    out: dict[str, Callable[[int], Tensor]] = {"used": case.used}
    for warps in (1, 2) if dim == 64 else (2, 4):
        for stages in (2, 3, 4):
            out[f"used, {warps} warps, {stages} stages"] = partial(case.used, warps=warps, stages=stages)

    def add(name: str, kernel: Any, splits: int = 1, tiles: bool = False, **how: Any) -> None:
        out[name] = lambda layer: case.call(kernel, layer, (rows, kv, splits), tiles, **how)

    for warps in (1, 2) if dim == 64 else (2, 4):
        for stages in (3, 4):
            how: dict[str, Any] = {"num_warps": warps, "num_stages": stages}
            name = f"{warps} warps, {stages} stages"
            add(f"rows ahead, {name}", _rows, CHUNK=0, AHEAD=True, BARE=False, **how)
            add(f"tma, {name}", _tma, tiles=True, **how)
        how = {"num_warps": warps, "num_stages": 3}
        add(f"rows ahead bare, {warps} warps", _rows, CHUNK=0, AHEAD=True, BARE=True, **how)
        for chunk in (4, 8):
            add(f"rows ahead, parts of {chunk}, {warps} warps", _rows, MOST, CHUNK=chunk, AHEAD=True, BARE=False, **how)
        add(f"tma, {warps} warps, 2 stages", _tma, tiles=True, num_warps=warps, num_stages=2)
    for ways, span, stages in ((2, 64, 2), (2, 64, 1), (4, 64, 1), (4, 32, 2), (4, 32, 3), (4, 16, 3), (2, 32, 3)):
        how = {"num_warps": ways, "num_stages": stages}
        add(f"{ways} ways of {span}, {stages} stages", _ways, WAYS=ways, SPAN=span, **how)
    return out


def off(case: Case, run: Callable[[int], Tensor]) -> float:
    """The largest difference to the twin, with rows at many positions and NaN where nothing was written."""
    at = torch.arange(len(case.pos), device=case.pos.device) * 7 % LONGEST
    case.pos.copy_(at)
    kept = case.kv[0].clone()
    for row in range(0, len(at), 17):  # what is not read must not matter
        page = case.table[row, int(at[row]) // PAGE]
        case.kv[0, :, page, :, int(at[row]) % PAGE :] = float("nan")
    mine, other = run(0).clone().float(), case.twin().float()
    case.kv[0] = kept
    return float((mine - other).abs().max())


def timed(case: Case, run: Callable[[int], Tensor], at: int) -> float:
    """Microseconds of a layer, the median of some replays of a graph."""
    case.positions(at)
    layers = len(case.kv)
    graph = recorded([lambda: [run(i) for i in range(layers)] and None], torch.cuda.graph_pool_handle())[0]
    for _ in range(3):
        graph.replay()
    ends = [torch.cuda.Event(enable_timing=True) for _ in range(16)]
    for end in ends:
        end.record()
        graph.replay()
    torch.cuda.synchronize()
    taken = sorted(a.elapsed_time(b) for a, b in pairwise(ends))
    return taken[len(taken) // 2] * 1000 / layers


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--only", default="", help="variants whose name has this")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    device = torch.device("cpu" if INTERPRETED else "cuda")
    found: list[dict[str, Any]] = []
    for dim in map(int, args.dims.split(",")):
        case = Case(dim, device, *((20, 1) if INTERPRETED else ()))
        for name, run in variants(case).items():
            if args.only not in name:
                continue
            try:
                row = {"dim": dim, "variant": name, "off": off(case, run)}
                if not INTERPRETED:
                    row |= {str(at or "ragged"): round(timed(case, run, at), 2) for at in (128, 256, 384, 2048, 0)}
            except Exception as error:  # such as too much shared memory: the others go on
                row = {"dim": dim, "variant": name, "error": str(error)[:200]}
            found.append(row)
            print(json.dumps(row), flush=True)
            if args.json is not None:
                args.json.write_text(json.dumps(found, indent=1) + "\n")
        del case


if __name__ == "__main__":
    main()
