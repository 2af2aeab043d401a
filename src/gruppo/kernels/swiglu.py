"""silu(gate) ⊙ up of a product with the stacked weights of both."""

from __future__ import annotations

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
    _swiglu[(rows, -(-size // BLOCK))](both_BF, out_BF, size, BLOCK, num_warps=4)
    return out_BF


@jit
def _swiglu(both, out, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = f < SIZE
    gate = tl.load(both + row * 2 * SIZE + f, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * SIZE + SIZE + f, mask=inside, other=0.0)
    # Rounded in between, as the plain twin and the trainer do.
    act = (gate * tl.sigmoid(gate)).to(up.dtype)
    tl.store(out + row * SIZE + f, act * up, mask=inside)
