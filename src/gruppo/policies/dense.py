"""Trees as padded lines with a mask, for models whose attention has one table for queries and keys.

`layout.py` gives a line the keys of its path in a second table. The attention of transformers cannot be told that, but
it takes a mask. Here a line holds branches of a tree, depth first, behind the path of the first: position i sees j
where j is i or before it on its path, that is where j ≤ i < end_j, with end_j the end of all that follows j.

A long answer sees few of its siblings' keys, yet pays for all of them. So a branch joins a line only where that is less
work than a line of its own, which computes the prefix again: that costs time and changes nothing.
"""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Inputs
from gruppo.data.prefix import ranges
from gruppo.policies.layout import Layout, Lines, additive, buckets_of, layout_of, lines_of

# Work of one more position in cells of attention: about 12·dim² products in the linear layers, 2·dim in a cell.
POSITION = 6


def dense_of(inputs: Inputs, context: int, dim: int, dtype: torch.dtype = torch.float32) -> Layout:
    """As `layout_of`, but the keys of a line are its own cells. `dim` is the width of the model."""
    branches, device = lines_of(inputs, context), inputs.ids_M.device
    if not branches.offset.any():
        return layout_of(inputs, context, dtype)
    heads = _heads(branches, POSITION * dim)
    first, offset = branches.first[heads], branches.offset[heads]
    own = np.add.reduceat(branches.length, heads)  # positions that no other line brings
    wide, several = offset + own, np.diff(heads, append=len(branches.first)) > 1
    order, cut = buckets_of(wide, wide, several)
    buckets = tuple((b - a, int(wide[order[a:b]].max())) for a, b in pairwise(cut))
    size = np.repeat([n for _, n in buckets], np.diff(cut))
    line = np.repeat(order, size)
    place = np.minimum(ranges(np.zeros_like(size), size), wide[line] - 1)
    row_C, prefix = first[line] + place - offset[line], place < offset[line]
    row_C[prefix] = branches.path(heads[line[prefix]], place[prefix])
    start = np.empty_like(wide)
    start[order] = np.cumsum(size) - size
    cell_M = ranges(start + offset, own)  # lines follow each other as their positions do
    ends = _ends(branches, heads, wide)
    masks = tuple(
        _mask([ends[i] for i in order[a:b]], n, device, dtype) if several[order[a]] else None
        for (a, b), (_, n) in zip(pairwise(cut), buckets, strict=True)
    )
    row, cell = (torch.from_numpy(x).to(device) for x in (row_C, cell_M))
    return Layout(row, cell, buckets, even=False, spans=tuple(n for _, n in buckets), masks=masks)


def _heads(branches: Lines, gain: int) -> np.ndarray:
    """The first branch of every line: work is counted in cells, and a causal line computes half of its own."""
    heads, used = list[int](), 0
    for i, (n, offset) in enumerate(zip(branches.length.tolist(), branches.offset.tolist(), strict=True)):
        joined, alone = 2 * used * n + n * n, (offset + n) ** 2 // 2 + gain * offset
        if offset == 0 or joined > alone:
            heads.append(i)
            used = offset
        used += n
    return np.array(heads, np.int64)


def _ends(branches: Lines, heads: np.ndarray, wide: np.ndarray) -> list[np.ndarray]:
    """end_j of every place of every line."""
    line = np.repeat(np.arange(len(heads)), np.diff(heads, append=len(branches.first)))  # of each branch
    shift = (branches.offset - branches.first)[heads][line]  # from a row of M to its place
    branch = np.repeat(np.arange(len(line)), branches.reach)
    place = ranges(np.zeros_like(line), branches.reach)
    row = branches.path(branch, place)
    place = np.where(row >= branches.first[heads][line][branch], row + shift[branch], place)
    end = np.empty(int(wide.sum()), np.int64)
    stop = branches.first + branches.length + shift
    end[(np.cumsum(wide) - wide)[line][branch] + place] = stop[branch]  # of several branches the last is kept
    return np.split(end, np.cumsum(wide)[:-1])


def _mask(ends: list[np.ndarray], size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(lines, 1, size, size). Empty cells see each other, and nobody sees them."""
    padded = np.stack([np.pad(end, (0, size - len(end)), constant_values=size) for end in ends])
    end_BT, here = torch.from_numpy(padded).to(device), torch.arange(size, device=device)
    return additive((here <= here[:, None]) & (here[:, None] < end_BT[:, None, None, :]), dtype)
