"""Packed positions in padded tables, for attention: the only operation that needs sequences apart."""

import math
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Inputs
from gruppo.data.prefix import prefix_nodes, ranges

WASTE = 2  # cells allowed per token


@dataclass(frozen=True)
class Layout:
    """Buckets of (lines, longest line), one after the other in a flat table of C cells.

    A line holds consecutive rows of M: a sequence, or its part after a prefix shared with others. It is padded on the
    right with its last position; the result is dropped, so its gradient is 0. A line attends to its path, that is the
    shared prefix and itself, in a second table. Lines without a shared prefix are causal: no mask, no second table.

    Of three ways to attend over a tree (paths, one dense line per tree, prefix and rest in two products) paths are the
    fastest or as fast at every shape in benchmarks/LOG.md, by far where answers are long. They work for any tree, and
    each query sees its keys in the order of the copied sequence.
    """

    row_C: Tensor  # the position of M in each cell
    cell_M: Tensor  # the cell of each position
    buckets: tuple[tuple[int, int], ...]
    even: bool  # cells are positions: nothing to move
    key_C: Tensor | None = None  # the position of M in each cell of the paths; None: paths are lines
    spans: tuple[int, ...] = ()  # longest path of each bucket
    masks: tuple[Tensor | None, ...] = ()  # additive, one per bucket; None: causal

    def lines(self, x_M: Tensor) -> list[Tensor]:
        """(lines, longest line, …) for every bucket."""
        return _padded(x_M if self.even else x_M.index_select(0, self.row_C), self.buckets)

    def paths(self, x_M: Tensor) -> list[Tensor]:
        """(lines, longest path, …) for every bucket."""
        if self.key_C is None:
            return self.lines(x_M)
        shapes = [(lines, span) for (lines, _), span in zip(self.buckets, self.spans, strict=True)]
        return _padded(x_M.index_select(0, self.key_C), shapes)

    def positions(self, lines: Seq[Tensor]) -> Tensor:
        """From the lines of all buckets (at least one) back to packed positions."""
        x_C = torch.cat([x.flatten(0, 1) for x in lines]) if len(lines) > 1 else lines[0].flatten(0, 1)
        return x_C if self.even else x_C.index_select(0, self.cell_M)


def _padded(x_C: Tensor, shapes: Seq[tuple[int, int]]) -> list[Tensor]:
    # split, not slices: the gradient of every slice would be padded to the whole table.
    parts = x_C.split([rows * size for rows, size in shapes]) if len(shapes) > 1 else [x_C][: len(shapes)]
    return [x.view(*shape, *x.shape[1:]) for x, shape in zip(parts, shapes, strict=True)]


def packed(
    sequences: Seq[np.ndarray],
    device: torch.device | str = "cpu",
    share: float = math.inf,
    after: np.ndarray | None = None,
    payloads: Seq[bytes] = (),
) -> Inputs:
    """Inputs of sequences of ids, without decisions. A prefix is shared if it is at least `share` of a sequence.

    after     how many positions come before each sequence, in a cache
    payloads  what else each sequence holds: those with different payloads share nothing
    """
    length = np.array([len(s) for s in sequences], np.int64)
    pos = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    ids = np.concatenate([*sequences, np.zeros(0, np.int64)]).astype(np.int64, copy=False)
    node = prefix_nodes(ids, length, share, payloads) if share <= 1 else None
    return Inputs(
        ids_M=torch.from_numpy(ids),
        pos_M=torch.from_numpy(pos if after is None else pos + np.repeat(after, length)),
        seq_M=torch.from_numpy(np.repeat(np.arange(len(length)), length)),
        parent_M=torch.from_numpy(np.where(pos > 0, np.arange(len(pos)) - 1, -1)),
        at_N=torch.zeros(0, dtype=torch.int64),
        node_M=None if node is None else torch.from_numpy(node),
    ).to(device)


def cuts(lengths: list[int], tokens: int) -> Iterator[tuple[int, int]]:
    """Ranges of adjacent items with at most `tokens` in total (but at least one item)."""
    start = used = 0
    for i, n in enumerate(lengths):
        if used + n > tokens and i > start:
            yield start, i
            start, used = i, 0
        used += n
    if lengths:
        yield start, len(lengths)


@dataclass(frozen=True)
class Lines:
    """The rows of M cut into lines of consecutive positions. A tree is depth first, so a first child continues the line
    of its parent."""

    first: np.ndarray  # first row of the line
    length: np.ndarray
    offset: np.ndarray  # number of rows of other lines before it on its path
    above: np.ndarray  # the line that it branches from, -1: none

    @property
    def reach(self) -> np.ndarray:
        return self.offset + self.length

    def head(self, n: int) -> "Lines":
        return Lines(self.first[:n], self.length[:n], self.offset[:n], self.above[:n])

    def path(self, line: np.ndarray, index: np.ndarray) -> np.ndarray:
        """The row of M at an index of a line's path."""
        line = line.copy()
        while (before := index < self.offset[line]).any():
            line[before] = self.above[line[before]]
        return self.first[line] + index - self.offset[line]


@dataclass(frozen=True)
class Past:
    """Keys and values that are known: rows [start, start + length) of `kv` come before a sequence. They may overlap."""

    kv: Tensor  # (layers, 2, P, width)
    start_S: np.ndarray
    length_S: np.ndarray

    def before(self, lines: Lines, inputs: Inputs) -> Lines:
        """The same lines, each with its past on its path. A past is a line without queries, of negative rows."""
        own, n = inputs.seq_M.cpu().numpy()[lines.first], len(lines.first)
        none = np.zeros_like(self.start_S)
        return Lines(
            first=np.concatenate([lines.first, self.start_S - self.kv.shape[2]]),
            length=np.concatenate([lines.length, self.length_S]),
            offset=np.concatenate([lines.offset + self.length_S[own], none]),
            above=np.concatenate([np.where(lines.above < 0, n + own, lines.above), none - 1]),
        )


def layout_of(inputs: Inputs, context: int, dtype: torch.dtype = torch.float32, past: Past | None = None) -> Layout:
    """The layout of some inputs, for all layers of a forward. `dtype` is that of the masks.

    The rows of a `past` come before those of M in the table of keys: `key_C` counts from the first of them.
    """
    lines, device = lines_of(inputs, context), inputs.seq_M.device
    paths = lines if past is None else past.before(lines, inputs)
    lines, known = paths.head(len(lines.first)), 0 if past is None else past.kv.shape[2]
    total, length, reach = len(inputs.ids_M), lines.length, lines.reach
    shared = bool((lines.offset > 0).any())
    if total == 0 or (not shared and length.min() == length.max()):
        rows = torch.arange(total, device=device)
        shapes = ((len(length), total // len(length)),) if total else ()
        return Layout(rows, rows, shapes, even=True, spans=tuple(n for _, n in shapes), masks=(None,) * len(shapes))
    order, cut = buckets_of(length, reach, lines.offset > 0)
    buckets = tuple((b - a, int(length[order[a:b]].max())) for a, b in pairwise(cut))
    spans = tuple(int(reach[order[a:b]].max()) for a, b in pairwise(cut))
    wide, far = (np.repeat(x, np.diff(cut)) for x in ([size for _, size in buckets], spans))
    inside = ranges(np.zeros_like(wide), wide)
    row_C = np.repeat(lines.first[order], wide) + np.minimum(inside, np.repeat(length[order] - 1, wide))
    cell_M = np.empty(total, np.int64)
    cell_M[ranges(lines.first[order], length[order])] = ranges(np.cumsum(wide) - wide, length[order])
    row_C, cell_M = (torch.from_numpy(x).to(device) for x in (row_C, cell_M))
    if not shared:
        return Layout(row_C, cell_M, buckets, even=False, spans=spans, masks=(None,) * len(buckets))
    index = np.minimum(ranges(np.zeros_like(far), far), np.repeat(reach[order] - 1, far))
    path_C = paths.path(np.repeat(order, far), index)
    key_C = torch.from_numpy(path_C + known).to(device)
    masks = tuple(
        _mask(lines.offset[order[a:b]], size, span, dtype, device)
        for (a, b), (_, size), span in zip(pairwise(cut), buckets, spans, strict=True)
    )
    return Layout(row_C, cell_M, buckets, even=False, key_C=key_C, spans=spans, masks=masks)


def _mask(offset: np.ndarray, size: int, span: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """(lines or 1, 1, size, span): query i of a line sees the first offset + i + 1 keys of its path."""
    if not offset.any():
        return None
    offset_B = torch.from_numpy(offset if np.ptp(offset) else offset[:1]).to(device)
    last = offset_B[:, None] + torch.arange(size, device=device)
    return additive(torch.arange(span, device=device) <= last[:, None, :, None], dtype)


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a key is seen, -inf elsewhere."""
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, float("-inf"))


def lines_of(inputs: Inputs, context: int) -> Lines:
    parent, seq, here = inputs.parent_M, inputs.seq_M, torch.arange(len(inputs.ids_M), device=inputs.ids_M.device)
    if len(here) == 0:
        return Lines(*np.zeros((4, 0), np.int64))
    ordered = (parent < here).all() & ((parent < 0) | (seq[parent] == seq)).all()
    ok, last = torch.stack([ordered.long(), inputs.pos_M.max()]).tolist()
    if not ok:
        raise ValueError(
            "parent_M: the parent of a position comes after it or is in another tree, so attention would see a wrong "
            "past. Order trees depth first, and give all rows of a tree the same seq_M."
        )
    if last >= context:
        raise ValueError(
            f"pos_M reaches {last}, the policy's context is {context}: it has no more positions. Shorten the sequence, "
            "or load a policy with a longer context."
        )
    begins = (parent < 0) | (parent != here - 1)
    first, before, line_M = (x.cpu().numpy() for x in (begins.nonzero()[:, 0], parent[begins], begins.cumsum(0) - 1))
    above = np.where(before < 0, -1, line_M[before])
    step = np.where(before < 0, 0, before - first[above] + 1)
    offset, at = step, above
    while (at >= 0).any():
        offset, at = offset + np.where(at < 0, 0, step[at]), np.where(at < 0, -1, above[at])
    return Lines(first, np.diff(first, append=len(here)), offset, above)


def buckets_of(length: np.ndarray, reach: np.ndarray, shared: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """An order of the lines, and the ends of its buckets, with at most WASTE cells per token.

    Lines with and without a shared prefix are apart. Each kind is one bucket if that is within the limit, since another
    call of attention costs more than a few empty cells; else one for each of (L/2, L], (L/4, L/2], … in length and in
    path.
    """
    code = np.where(shared, 1 << 16, 0)
    for kind in (~shared, shared):
        if any(kind.sum() * x[kind].max(initial=0) > WASTE * x[kind].sum() for x in (length, reach)):
            far, wide = (np.frexp(x[kind].max() // x[kind])[1] for x in (reach, length))
            code[kind] += (far << 8) + wide
    order = np.lexsort((-length, -reach, code))
    return order, [0, *(np.flatnonzero(np.diff(code[order])) + 1).tolist(), len(order)]
