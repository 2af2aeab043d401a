"""Diversity of the answers of a group: from n-grams of tokens, for all groups at once, and by edits of two answers."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gruppo.data import Key, gather, key_hash, lag, segment

SMOOTH = 0.1  # instead of 0 matches; method 1 of Chen and Cherry 2014, "Smoothing techniques for sentence-level BLEU"


def self_bleu(token_N: Tensor, part_N: Tensor, groups: Key, most: int = 3) -> Tensor:
    """Mean BLEU of each row of a group against the others (Zhu et al. 2018, arXiv:1802.01886); 0 for a single row.

        BLEU = BP · (Π_n p_n)^(1/most),   p_n = matched n-grams / n-grams,   BP = min(1, exp(1 − closest / length))

    Tokens are sorted by row, which is `part_N`. The matches of an n-gram are clipped at its largest count in any other
    row. Equal to nltk's `sentence_bleu` with even weights and smoothing 1: 0 if no token is shared.
    """
    length = torch.bincount(part_N, minlength=len(groups.index)).double()
    matched = [_matched(token_N, part_N, groups, n) for n in range(1, most + 1)]
    log_p = [torch.log(torch.where(m > 0, m, SMOOTH) / (length - n).clamp(min=1.0)) for n, m in enumerate(matched)]
    brevity = (1 - _closest(length, groups) / length).clamp(max=0.0)
    bleu = torch.where(matched[0] > 0, torch.exp(brevity + sum(log_p) / most), 0.0)
    return gather(bleu, groups, "mean")


def _matched(token_N: Tensor, part_N: Tensor, groups: Key, n: int) -> Tensor:
    """For each row, its n-grams that other rows have, each counted at most as often as in any one of them."""
    rows = len(groups.index)
    here = lag(torch.ones_like(part_N, dtype=torch.bool), 1 - n, part_N)  # n tokens of one row begin here
    later = [lag(token_N, -k, part_N)[here] for k in range(n)]
    gram = key_hash(groups.index[part_N[here]], *later)
    assert isinstance(gram, Tensor)
    grams, index = torch.unique(gram, return_inverse=True)
    cell, count = torch.unique(index * rows + part_N[here], return_counts=True)  # one n-gram in one row
    by, row, count = Key(cell // rows, len(grams)), cell % rows, count.double()
    top = by.spread(gather(count, by, "max"))
    single = by.spread(gather((count == top).double(), by, "sum")) == 1
    second = by.spread(gather(count, by, "max", where=count < top))
    others = torch.where((count == top) & single, second, top)
    return torch.zeros(rows, dtype=torch.float64).index_add(0, row, torch.minimum(count, others))


def _closest(length: Tensor, groups: Key) -> Tensor:
    """The closest length among the other rows of the group, the shorter of two; infinite for a single row."""
    order = torch.argsort(length, stable=True)
    order = order[torch.argsort(groups.index[order], stable=True)]
    x, part = length[order], groups.index[order]
    inf = float("inf")
    below, above = segment.lag(x, 1, part, inf), segment.lag(x, -1, part, inf)
    near = torch.where((x - below).abs() <= (above - x).abs(), below, above)
    return torch.empty_like(length).index_copy(0, order, near)


def edit_distance(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """The fewest insertions, deletions and substitutions that turn `a` into `b` (Levenshtein 1966).

        D_ij = min(D_{i−1,j} + 1, D_{i−1,j−1} + [a_i ≠ b_j], D_{i,j−1} + 1)

    A row at a time: the last term is a running minimum of D_ij − j.
    """
    place = np.arange(len(b) + 1)
    row = place
    for i, x in enumerate(a):
        kept = np.minimum(row[1:] + 1, row[:-1] + (b != x))
        row = np.minimum.accumulate(np.append(i + 1, kept) - place) + place
    return int(row[-1])
