"""Worked numbers of the methods that remember tasks: hapo_history, dump, mmr1_vas, spo_single."""

import pytest
import torch

from gruppo.data import Key
from gruppo.pieces.diversity import self_bleu

# mmr1_vas: self-BLEU as nltk 3.9.2 computes it (weights 1/3, smoothing method 1); p = (0, .5, 1) -> w = (0, 1, 0)

BLEU = [
    ([[1, 7, 2, 2, 3, 2, 1], [4, 9], [0, 1, 5], [1, 3, 4, 3, 7, 4, 0, 0]], 0.08785104147243437),
    ([[0, 7, 1, 5, 1, 2, 0]], 0.0),
    ([[0, 1, 7, 1, 4, 1, 5, 3, 8], [0, 6, 4, 1, 0]], 0.08047685768277965),
    ([[4], [0, 2, 0, 2, 6, 8, 4, 0]], 0.0155931818630176),
    ([[4, 3, 5, 1, 1, 4, 5], [0, 4, 2, 1], [3, 0, 2], [2, 8, 1, 0], [9, 1, 1, 0], [0]], 0.15311436300183814),
    ([[1, 0], [6], [0, 0], [3, 0, 7, 2, 2], [1, 3, 2, 3, 2, 0, 4], [2, 1, 1, 6, 8]], 0.11573436585798957),
    ([[1, 2, 3, 4]] * 3, 1.0),
    ([[1, 2, 3], [4, 5, 6]], 0.0),
    ([[1, 2, 3], []], 0.0),
]


def test_self_bleu_of_many_groups_at_once() -> None:
    rows = [(row, g) for g, (group, _) in enumerate(BLEU) for row in group]
    token_N = torch.tensor([t for row, _ in rows for t in row])
    part_N = torch.tensor([i for i, (row, _) in enumerate(rows) for _ in row])
    got = self_bleu(token_N, part_N, Key(torch.tensor([g for _, g in rows]), len(BLEU)))
    assert got.tolist() == pytest.approx([bleu for _, bleu in BLEU], abs=1e-12)
