"""Shared prefixes of sequences: found when a batch is packed, and computed once in every forward.

A batch has one row of M for each token of each sequence. Rows with the same token and the same prefix have the same
`node_M`, and `Inputs.tree` keeps one row for each node. Gradients need no special rule: all positions of a node read
it, so autograd adds up their gradients.
"""

from collections.abc import Sequence

import numpy as np

# The smallest fraction of a sequence worth sharing. Time saved is about proportional to rows saved; below a tenth, as
# for a common BOS, the attention mask and keys of a branch cost as much (benchmarks/LOG.md).
WORTH = 1 / 8


def prefix_nodes(
    ids: np.ndarray, length: np.ndarray, worth: float = WORTH, payloads: Sequence[bytes] = ()
) -> np.ndarray | None:
    """A number for each position, equal where token and prefix are equal; None if nothing is shared.

    ids, length  the sequences, one after another
    worth        the smallest fraction of a sequence that it must share with the previous one in sorted order
    payloads     what a sequence holds besides its ids; sequences with different ones share nothing. Empty: none does

    Sorted sequences with a common prefix are neighbours, so comparing neighbours finds all of them, without hashing.
    Numbers increase along every sequence, and from one sequence to the next in sorted order (depth first).
    """
    start = np.cumsum(length) - length
    raw = ids.astype(">i8").tobytes()  # big-endian, so that bytes sort like numbers
    keys = [raw[8 * a : 8 * (a + n)] for a, n in zip(start.tolist(), length.tolist(), strict=True)]
    if any(payloads):
        order = np.array(sorted(range(len(keys)), key=lambda i: (payloads[i], keys[i])), np.int64)
    else:
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
    common = common_with_previous(ids, start[order], length[order])
    if any(payloads):
        common[[i > 0 and payloads[order[i]] != payloads[order[i - 1]] for i in range(len(order))]] = 0
    common[common < worth * length[order]] = 0
    if not common.any():
        return None
    inside = ranges(np.zeros_like(order), length[order])
    rows = np.arange(len(inside))
    new = inside >= np.repeat(common, length[order])
    back = np.repeat(np.roll(length[order], 1), length[order])  # to the same position of the previous sequence
    node = np.where(new, rows, rows - back)
    while (node[node] != node).any():
        node = node[node]
    node_M = np.empty_like(node)
    node_M[ranges(start[order], length[order])] = node
    return node_M


def common_with_previous(values: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """How many leading values each sequence shares with the previous one in this order; 0 for the first."""
    most = np.minimum(length, np.roll(length, 1))
    most[:1] = 0
    differ = np.flatnonzero(values[ranges(start, most)] != values[ranges(np.roll(start, 1), most)])[::-1]
    inside, pair = ranges(np.zeros_like(most), most), np.repeat(np.arange(len(most)), most)
    common = most.copy()
    common[pair[differ]] = inside[differ]  # the last assignment wins: the first difference
    return common


def ranges(start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """The concatenation of start[i] .. start[i] + length[i] - 1."""
    return np.arange(int(length.sum())) + np.repeat(start - (np.cumsum(length) - length), length)
