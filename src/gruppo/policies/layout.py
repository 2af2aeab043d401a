"""How packed positions stand in padded cells, for the one operation that needs sequences apart: attention."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Inputs

WASTE = 2  # cells allowed for each real token


@dataclass(frozen=True)
class Layout:
    """Buckets of (sequences, longest), one after the other in a flat table of C cells.

    A sequence stands at the left of its line. With causal attention the cells to its right cannot reach it,
    so no mask exists; they repeat its last position, are computed and dropped, and their gradient is 0.
    """

    row_C: Tensor  # the position of M that a cell holds
    cell_M: Tensor  # the cell that holds a position
    buckets: tuple[tuple[int, int], ...]
    even: bool  # cells are positions: nothing to move


def packed(sequences: Seq[np.ndarray], device: torch.device | str = "cpu") -> Inputs:
    """Inputs of plain sequences of ids, without decisions."""
    length = np.array([len(s) for s in sequences], np.int64)
    pos = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    ids = np.concatenate([*sequences, np.zeros(0, np.int64)]).astype(np.int64, copy=False)
    return Inputs(
        ids_M=torch.from_numpy(ids),
        pos_M=torch.from_numpy(pos),
        seq_M=torch.from_numpy(np.repeat(np.arange(len(length)), length)),
        parent_M=torch.from_numpy(np.where(pos > 0, np.arange(len(pos)) - 1, -1)),
        at_N=torch.zeros(0, dtype=torch.int64),
    ).to(device)


def cuts(lengths: list[int], tokens: int) -> Iterator[tuple[int, int]]:
    """Neighbouring items in pieces of at most `tokens` (at least one item)."""
    start = used = 0
    for i, n in enumerate(lengths):
        if used + n > tokens and i > start:
            yield start, i
            start, used = i, 0
        used += n
    if lengths:
        yield start, len(lengths)


def layout_of(inputs: Inputs, context: int) -> Layout:
    """The layout of one view; made once a forward and used by all its layers."""
    length_S = _lengths(inputs, context)
    device = inputs.seq_M.device
    total = int(length_S.sum())
    if total == 0 or length_S.min() == length_S.max():
        rows = torch.arange(total, device=device)
        return Layout(rows, rows, ((len(length_S), total // len(length_S)),) if total else (), even=True)
    order = np.argsort(-length_S, kind="stable")
    start, length = (np.cumsum(length_S) - length_S)[order], length_S[order]
    buckets = _buckets(length)
    wide = np.repeat([size for _, size in buckets], [rows for rows, _ in buckets])
    inside = _ranges(np.zeros_like(wide), wide)
    row_C = np.repeat(start, wide) + np.minimum(inside, np.repeat(length - 1, wide))
    cell_M = np.empty(total, np.int64)
    cell_M[_ranges(start, length)] = _ranges(np.cumsum(wide) - wide, length)
    return Layout(torch.from_numpy(row_C).to(device), torch.from_numpy(cell_M).to(device), buckets, even=False)


def _ranges(start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """The concatenation of start[i] .. start[i] + length[i] - 1."""
    return np.arange(int(length.sum())) + np.repeat(start - (np.cumsum(length) - length), length)


def _lengths(inputs: Inputs, context: int) -> np.ndarray:
    seq, m = inputs.seq_M, len(inputs.seq_M)
    if m == 0:
        return np.zeros(0, np.int64)
    first = torch.ones(m, dtype=torch.bool, device=seq.device)
    first[1:] = seq[1:] != seq[:-1]
    straight = inputs.parent_M == torch.where(first, -1, torch.arange(m, device=seq.device) - 1)
    ordered, reach = (straight.all() & (seq[1:] >= seq[:-1]).all()).long(), inputs.pos_M.max()
    ok, last = torch.stack([ordered, reach]).tolist()
    if not ok:
        raise ValueError(
            "parent_M: a position does not follow the row before it, so attention over rows would read "
            "a wrong past. Pack each branch of a tree as a sequence, its rows as neighbours."
        )
    if last >= context:
        raise ValueError(
            f"pos_M reaches {last}, the policy's context is {context}: rotary positions end there. "
            "Shorten the sequence or load a policy with a longer context."
        )
    return np.diff(np.flatnonzero(first.cpu().numpy()), append=m)


def _buckets(length: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Lengths in falling order, cut so that at most WASTE cells stand for each token.

    One bucket where that already holds: a second call of attention costs more than a few empty cells. Else
    one for each of (L/2, L], (L/4, L/2], … below the longest L.
    """
    if len(length) * length[0] <= WASTE * length.sum():
        return ((len(length), int(length[0])),)
    octave = np.frexp(length[0] // length)[1]
    cut = [0, *(np.flatnonzero(np.diff(octave)) + 1).tolist(), len(length)]
    return tuple((b - a, int(length[a])) for a, b in pairwise(cut))
