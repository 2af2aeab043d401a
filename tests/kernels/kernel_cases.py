"""Random inputs of kernels, on any device; what a kernel may not read is NaN."""

from typing import Any

import torch
from torch import Tensor

from gruppo.kernels.attention import PAGE, Heads, Rope

# heads, key heads, size of a head, norms of q and k, rows, longest row
SHAPES = [
    (14, 2, 64, False, 3, 300),
    (12, 2, 128, False, 40, 200),
    (16, 8, 128, True, 9, 130),
    (32, 8, 128, False, 1, 700),
    (9, 3, 64, False, 33, 64),
    (4, 4, 32, True, 70, 65),
    (8, 2, 96, True, 5, 1),
]


def rope_of(dim: int, positions: int, device: str) -> Rope:
    half = dim // 2
    angle = torch.arange(positions, device=device)[:, None] * 10000.0 ** (-torch.arange(half, device=device) / half)
    return Rope(torch.cat([angle.cos()] * 2, -1), torch.cat([-angle.sin(), angle.sin()], -1))


def attention_case(shape: tuple[Any, ...], dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Arguments of `attend`. Positions that a row has not written, and pages of nobody, are NaN."""
    heads, kv_heads, dim, norm, rows, longest = shape
    draw = torch.Generator().manual_seed(rows)
    pos_B = torch.randint(0, longest, (rows,), generator=draw)
    pos_B[0] = longest - 1
    wide = -(-longest // PAGE)
    table_BP = (torch.randperm(rows * wide, generator=draw).view(rows, wide) + 1).int()
    shape_ = (rows * wide + 1, kv_heads, PAGE, dim)
    keys, values = (torch.randn(shape_, generator=draw) for _ in range(2))
    for b in range(rows):
        for page in range(wide):
            used = max(0, min(PAGE, int(pos_B[b]) - page * PAGE))
            keys[table_BP[b, page], :, used:] = values[table_BP[b, page], :, used:] = torch.nan
    qkv_BX = torch.randn(rows, (heads + 2 * kv_heads) * dim, generator=draw)
    norms = tuple(torch.rand(dim, generator=draw) + 0.5 for _ in range(2)) if norm else None
    given = {"qkv_BX": qkv_BX, "keys": keys, "values": values}
    out: dict[str, Any] = {k: v.to(device=device, dtype=dtype) for k, v in given.items()}
    out["norms"] = None if norms is None else tuple(w.to(device=device, dtype=dtype) for w in norms)
    rope = rope_of(dim, longest + 1, device)
    return out | {"h": Heads(heads, kv_heads, dim), "rope": rope} | to(device, pos_B=pos_B, table_BP=table_BP)


def to(device: str, **tensors: Tensor) -> dict[str, Tensor]:
    return {k: v.to(device) for k, v in tensors.items()}


def logits_case(rows: int, vocab: int, device: str, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(vocab)
    return to(
        device,
        logits_BV=(3 * torch.randn(rows, vocab, generator=draw)).to(dtype),
        heat_B=torch.rand(rows, generator=draw) + 0.5,
        key_B=torch.randint(-(2**62), 2**62, (rows,), generator=draw),
        pos_B=torch.randint(0, 5000, (rows,), generator=draw),
    )


def close(a: Tensor, b: Tensor, limit: float) -> None:
    """Within `limit` of the largest number."""
    a, b = a.detach().double(), b.detach().double()
    gap = float((a - b).abs().max()) / max(float(b.abs().max()), 1e-30)
    assert gap <= limit, f"{gap:.2e} apart, {limit:.0e} allowed"
