"""Prefixes that sequences have in common: found once, when a batch is packed, and computed once in every forward.

A batch keeps one row of M for each token of each sequence; `node_M` says which of them are the same thing, token and
everything before it. `Inputs.tree` keeps one row for each node. Gradients need no rule of their own: a node is read by
all of its positions, so autograd adds up what they send back.
"""

import numpy as np

# The least part of a sequence that is worth sharing. Time is saved about as rows are; below a tenth, such as a common
# BOS, the mask of a branch and its own line of keys cost as much (benchmarks/LOG.md).
WORTH = 1 / 8


def prefix_nodes(ids: np.ndarray, length: np.ndarray, worth: float = WORTH) -> np.ndarray | None:
    """A number for each position, the same where token and past are the same; None if nothing is shared.

    ids, length  the sequences, one after the other
    worth        a sequence that shares less than this part of itself with the one before it, sorted, shares nothing

    Sorting puts common prefixes side by side, so they are found between neighbours alone, exactly (no hashing).
    Numbers rise along every sequence and from one sequence to the next in the sorted order: depth first.
    """
    start = np.cumsum(length) - length
    raw = ids.astype(">i8").tobytes()  # big-endian: bytes sort as numbers do
    keys = [raw[8 * a : 8 * (a + n)] for a, n in zip(start.tolist(), length.tolist(), strict=True)]
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    common = common_with_previous(ids, start[order], length[order])
    common[common < worth * length[order]] = 0
    if not common.any():
        return None
    inside = ranges(np.zeros_like(order), length[order])
    rows = np.arange(len(inside))
    new = inside >= np.repeat(common, length[order])
    before = np.repeat(np.roll(length[order], 1), length[order])  # the same place in the sequence before
    node = np.where(new, rows, rows - before)
    while (node[node] != node).any():
        node = node[node]
    node_M = np.empty_like(node)
    node_M[ranges(start[order], length[order])] = node
    return node_M


def common_with_previous(values: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """How many leading values each sequence shares with the one before it in this order; 0 for the first."""
    most = np.minimum(length, np.roll(length, 1))
    most[:1] = 0
    differ = np.flatnonzero(values[ranges(start, most)] != values[ranges(np.roll(start, 1), most)])[::-1]
    inside, pair = ranges(np.zeros_like(most), most), np.repeat(np.arange(len(most)), most)
    common = most.copy()
    common[pair[differ]] = inside[differ]  # of several the last is kept: the first difference
    return common


def ranges(start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """The concatenation of start[i] .. start[i] + length[i] - 1."""
    return np.arange(int(length.sum())) + np.repeat(start - (np.cumsum(length) - length), length)
