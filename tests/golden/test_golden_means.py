"""Ways to average, on a ragged batch written by hand, with the sums written out.

    group g0   episode A   sequence 1   1  2
                           sequence 2   4            (weight in every unit: three tokens in two sequences)
               episode B   sequence 3   8  16  32
    group g1   episode C   sequence 4   64
    group g2   drawn, and removed by selection

Powers of two: every sum says which values are in it. Origin: the definitions in `pieces/aggregate.py` and the
usual names (token-mean, seq-mean-token-mean, seq-mean-token-sum, seq-mean-token-sum-norm), by hand.
"""

import numpy as np
import pytest
import torch
from hand import answer, batch_of

from gruppo.data import Batch, Episode, Sequence, Source, Turn
from gruppo.pieces import aggregate
from gruppo.stages import Term

VALUES = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]


def two_sequences(uid: int, group: str, lengths: tuple[int, int]) -> Episode:
    sequences, turns = [], []
    for i, n in enumerate(lengths):
        source = np.array([Source.ENV] * 2 + [Source.POLICY] * n, np.int8)
        logp = np.where(source == Source.POLICY, -1.0, np.nan).astype(np.float32)
        version = np.where(source == Source.POLICY, 0, -1).astype(np.int32)
        sequences.append(Sequence(np.full(n + 2, 3, np.int64), source, logp, version, 2))
        turns.append(Turn(2, 2 + n, i))
    return Episode(uid, "t", group, sequences, turns, {"task": 1.0})


def ragged() -> Batch:
    episodes = [two_sequences(1, "g0", (2, 1)), answer(2, "g0", 3, 0.0), answer(3, "g1", 1, 1.0)]
    return batch_of(episodes, drawn={"g0": 2, "g1": 1, "g2": 2})


def total(batch: Batch, mean: str | float, over: list[bool]) -> float:
    value = torch.tensor(VALUES, dtype=torch.float64)
    term = Term("x", torch.tensor(over), mean)
    return float(term.total(value, term.weights(batch)))


ALL = [True] * 7
FULL = {
    "token": (1 + 2 + 4 + 8 + 16 + 32 + 64) / 7,
    "sequence": ((1 + 2) / 2 + 4 / 1 + (8 + 16 + 32) / 3 + 64 / 1) / 4,
    "sequence_sum": ((1 + 2) + 4 + (8 + 16 + 32) + 64) / 4,
    "episode": ((1 + 2 + 4) / 3 + (8 + 16 + 32) / 3 + 64 / 1) / 3,
    "episode_sum": ((1 + 2 + 4) + (8 + 16 + 32) + 64) / 3,
    "group": ((1 + 2 + 4 + 8 + 16 + 32) / 6 + 64 / 1) / 2,
    "group_sum": ((1 + 2 + 4 + 8 + 16 + 32) + 64) / 2,
    "drawn_group": ((1 + 2 + 4 + 8 + 16 + 32) / 6 + 64 / 1) / 3,
    "drawn_group_sum": ((1 + 2 + 4 + 8 + 16 + 32) + 64) / 3,
}


@pytest.mark.parametrize("mean", FULL)
def test_every_token_counts(mean: str) -> None:
    """All seven tokens, by hand: see the table at the top."""
    assert total(ragged(), mean, ALL) == pytest.approx(FULL[mean], abs=1e-12)


# Without 2 (half of sequence 1), 4 (all of sequence 2) and 64 (all of episode C and of group g1).
SOME = [True, False, False, True, True, True, False]
MASKED = {
    "token": (1 + 8 + 16 + 32) / 4,
    "sequence": (1 / 1 + (8 + 16 + 32) / 3) / 2,
    "sequence_sum": (1 + (8 + 16 + 32)) / 2,
    "episode": (1 / 1 + (8 + 16 + 32) / 3) / 2,
    "episode_sum": (1 + (8 + 16 + 32)) / 2,
    "group": (1 + 8 + 16 + 32) / 4,
    "group_sum": 1 + 8 + 16 + 32,
    "drawn_group": (1 + 8 + 16 + 32) / 4 / 3,
    "drawn_group_sum": (1 + 8 + 16 + 32) / 3,
}


@pytest.mark.parametrize("mean", MASKED)
def test_masked_tokens_and_empty_units_leave_the_count(mean: str) -> None:
    """As in verl: fully masked sequences are left out of the sequence count; drawn groups stay."""
    assert total(ragged(), mean, SOME) == pytest.approx(MASKED[mean], abs=1e-12)


@pytest.mark.parametrize("unit", ["sequence", "episode", "group", "drawn_group"])
def test_a_sum_over_a_constant(unit: str) -> None:
    """Dr.GRPO's: the sum inside each unit over a constant, whatever its length; then the mean over the units."""
    assert total(ragged(), f"{unit}_sum/20", ALL) == pytest.approx(FULL[f"{unit}_sum"] / 20, abs=1e-12)
    assert total(ragged(), f"{unit}_sum/2.5", SOME) == pytest.approx(MASKED[f"{unit}_sum"] / 2.5, abs=1e-12)


@pytest.mark.parametrize("mean", ["sequence_sum/0", "sequence_sum/", "sequence_sum/-3", "sequence_sum/nan", "token/4"])
def test_a_constant_that_is_none(mean: str) -> None:
    with pytest.raises(ValueError, match=r"divides by no constant. Write a sum, a slash and a number"):
        total(ragged(), mean, ALL)
    with pytest.raises(ValueError, match=r"mean='answer_sum/4' is no way to average. Use one of"):
        total(ragged(), "answer_sum/4", ALL)


def test_the_five_that_others_name() -> None:
    """verl agg_loss and its names, as the card has them, by hand on the table above; C = 20, four sequences.

    verl's seq-mean-token-sum-norm divides by C only, so it is the number; over the answers too it is sequence_sum/20.
    """
    per_sequence = [(1 + 2, 2), (4, 1), (8 + 16 + 32, 3), (64, 1)]
    named = {
        "token": sum(s for s, _ in per_sequence) / 7,  # token-mean
        "sequence": sum(s / n for s, n in per_sequence) / 4,  # seq-mean-token-mean
        "sequence_sum": sum(s for s, _ in per_sequence) / 4,  # seq-mean-token-sum
        "sequence_sum/20": sum(s / 20 for s, _ in per_sequence) / 4,  # seq-mean-token-sum-norm, over the answers
        20: sum(s for s, _ in per_sequence) / 20,  # seq-mean-token-sum-norm, verl's
    }
    for mean, expected in named.items():
        assert total(ragged(), mean, ALL) == pytest.approx(expected, abs=1e-12), mean


def test_a_number_divides() -> None:
    """seq-mean-token-sum-norm: a constant of your own, whatever the batch (pitfall 14)."""
    assert total(ragged(), 20.0, ALL) == pytest.approx(127 / 20)
    assert total(ragged(), 20, SOME) == pytest.approx((1 + 8 + 16 + 32) / 20)


@pytest.mark.parametrize("mean", [*FULL, 20.0, "episode_sum/20"])
def test_an_empty_mask_gives_zero_with_a_graph(mean: str | float) -> None:
    """Never NaN, and a gradient of 0."""
    value = torch.tensor([float("nan")] * 7, dtype=torch.float64, requires_grad=True)
    batch = ragged()
    term = Term("x", torch.zeros(7, dtype=torch.bool), mean)
    out = term.total(value, term.weights(batch))
    assert float(out.detach()) == 0.0
    [slope] = torch.autograd.grad(out, value)
    assert slope.tolist() == [0.0] * 7


def test_other_levels() -> None:
    """Terms of episodes: E rows (10, 20, 40). token: 70/3; group: ((10 + 20)/2 + 40)/2; drawn_group: by 3."""
    batch = ragged()
    value = torch.tensor([10.0, 20.0, 40.0], dtype=torch.float64)
    for mean, expected in {"token": 70 / 3, "group": (15 + 40) / 2, "drawn_group": (15 + 40) / 3, 7.0: 10.0}.items():
        term = Term("x", torch.ones(3, dtype=torch.bool), mean, at="E")
        assert float(term.total(value, term.weights(batch))) == pytest.approx(expected)


def test_a_minibatch_counts_its_own_and_has_its_share_of_the_groups_drawn() -> None:
    """Three groups drawn for two that are left: a minibatch of one of them has 1.5. Group g1: 64 / 1.5."""
    part = ragged().minibatch(torch.tensor([2]))
    weights = aggregate.weights(part, "N", torch.tensor([True]), "drawn_group")
    assert (64 * weights).tolist() == pytest.approx([64 / 1.5])
    assert (64 * aggregate.weights(part, "N", torch.tensor([True]), "sequence")).tolist() == [64.0]
