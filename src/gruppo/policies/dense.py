"""Trees as padded lines with a mask, for models whose queries and keys come from the same line.

`layout.py` gives a line the keys of its path in a second table, which the attention of transformers does not support.
It does take a mask. Here a line holds branches of a tree, depth first, after the path of the first one. Position i sees
j if j is i or precedes it on its path, that is if j ≤ i < end_j, with end_j the end of all that follows j.

A long answer sees few of its siblings' keys, yet pays for all of them. So a branch joins a line only if that is less
work than a line of its own, which computes the prefix again.
"""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Inputs
from gruppo.data.prefix import ranges
from gruppo.policies.layout import Layout, Lines, additive, buckets_of, layout_of, lines_of

# Work of one more position, in cells of attention: about 12·dim² products in the linear layers, 2·dim in a cell.
POSITION = 6


def dense_of(inputs: Inputs, context: int, dim: int, dtype: torch.dtype = torch.float32) -> Layout:
    """Like `layout_of`, but the keys of a line are its own cells. `dim` is the width of the model."""
    branches, device = lines_of(inputs, context), inputs.ids_M.device
    if not branches.offset.any():
        return layout_of(inputs, context, dtype)
    heads = _heads(branches, POSITION * dim)
    first, offset = branches.first[heads], branches.offset[heads]
    own = np.add.reduceat(branches.length, heads)  # positions that no other line holds
    wide, several = offset + own, np.diff(heads, append=len(branches.first)) > 1
    order, cut = buckets_of(wide, wide, several)
    buckets = tuple((b - a, int(wide[order[a:b]].max())) for a, b in pairwise(cut))
    size = np.repeat([n for _, n in buckets], np.diff(cut))
    line = np.repeat(order, size)
    index = np.minimum(ranges(np.zeros_like(size), size), wide[line] - 1)
    row_C, prefix = first[line] + index - offset[line], index < offset[line]
    row_C[prefix] = branches.path(heads[line[prefix]], index[prefix])
    start = np.empty_like(wide)
    start[order] = np.cumsum(size) - size
    cell_M = ranges(start + offset, own)  # lines are in the order of their positions
    ends = _ends(branches, heads, wide)
    masks = tuple(
        _mask([ends[i] for i in order[a:b]], n, device, dtype) if several[order[a]] else None
        for (a, b), (_, n) in zip(pairwise(cut), buckets, strict=True)
    )
    row, cell = (torch.from_numpy(x).to(device) for x in (row_C, cell_M))
    return Layout(row, cell, buckets, even=False, spans=tuple(n for _, n in buckets), masks=masks)


def _heads(branches: Lines, gain: int) -> np.ndarray:
    """The first branch of every line. Work is counted in cells, of which a causal line computes half."""
    heads, used = list[int](), 0
    for i, (n, offset) in enumerate(zip(branches.length.tolist(), branches.offset.tolist(), strict=True)):
        joined, alone = 2 * used * n + n * n, (offset + n) ** 2 // 2 + gain * offset
        if offset == 0 or joined > alone:
            heads.append(i)
            used = offset
        used += n
    return np.array(heads, np.int64)


def _ends(branches: Lines, heads: np.ndarray, wide: np.ndarray) -> list[np.ndarray]:
    """end_j of every cell of every line."""
    line = np.repeat(np.arange(len(heads)), np.diff(heads, append=len(branches.first)))  # of each branch
    shift = (branches.offset - branches.first)[heads][line]  # from a row of M to its index in the line
    branch = np.repeat(np.arange(len(line)), branches.reach)
    index = ranges(np.zeros_like(line), branches.reach)
    row = branches.path(branch, index)
    index = np.where(row >= branches.first[heads][line][branch], row + shift[branch], index)
    end = np.empty(int(wide.sum()), np.int64)
    stop = branches.first + branches.length + shift
    end[(np.cumsum(wide) - wide)[line][branch] + index] = stop[branch]  # of several branches the last one counts
    return np.split(end, np.cumsum(wide)[:-1])


def _mask(ends: list[np.ndarray], size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(lines, 1, size, size). Empty cells see each other, and no other cell sees them."""
    padded = np.stack([np.pad(end, (0, size - len(end)), constant_values=size) for end in ends])
    end_BT, here = torch.from_numpy(padded).to(device), torch.arange(size, device=device)
    return additive((here <= here[:, None]) & (here[:, None] < end_BT[:, None, None, :]), dtype)
