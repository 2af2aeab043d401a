"""What has not the rows that are asked for is refused, with both numbers, and so is a word that is no reduction."""

from typing import Any

import pytest
import torch
from making_episodes import answer
from torch import Tensor

from gruppo.data import Batch, Key, centre, gather, lag, pack, scan, segment
from gruppo.stages.select import sampler_ratio
from gruppo.stages.terms import Term
from gruppo.stages.turns import comparison


@pytest.fixture(scope="module")
def batch() -> Batch:
    """4 episodes of 2 tokens in 2 groups: N=8, E=4, G=2."""
    return pack([answer(i, 2, "ab"[i // 2], reward={"task": float(i)}) for i in range(4)])


def said(f: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(ValueError) as error:
        f(*args, **options)
    return str(error.value)


@pytest.mark.parametrize(("how", "near"), [("mx", "max"), ("median", "mean"), ("Mean", "mean"), ("SUM", "sum")])
def test_no_reduction_is_guessed(batch: Batch, how: Any, near: str) -> None:
    for found in (
        said(batch.gather, batch.reward_E, "E", "G", how),
        said(gather, batch.reward_E, batch.level("E", "G"), how),
        said(segment.gather, batch.reward_E, batch.level("E", "G"), how, where=batch.judged_E),
    ):
        assert f"how={how!r}" in found and f"(nearest: {near})" in found and "logmeanexp" in found


def test_no_other_word_is_guessed(batch: Batch) -> None:
    """Neighbours: functions of the stages that take a word and are called from files of users."""
    old = batch.with_columns(logp_old_N=batch.logp_gen_N)
    assert "level='seqence' is none of its words (nearest: sequence)" in said(sampler_ratio, old, "seqence")
    assert "normalise='mena' is none of its words" in said(comparison, "mena", 1e-6)
    assert "alone='none'" in said(comparison, "std", 1e-6, alone="none")


def test_a_reduction_that_is_no_word(batch: Batch) -> None:
    for how in (None, 3, ["sum"], "zzzz"):
        assert "Use sum, mean, var" in said(batch.gather, batch.reward_E, "E", "G", how)


def test_every_reduction_still_has_its_own_meaning(batch: Batch) -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 5.0])
    found = {how: batch.gather(x, "E", "G", how).tolist() for how in segment.HOWS}
    assert len({tuple(map(float, v)) for k, v in found.items() if k not in ("any", "all")}) == len(found) - 2
    assert found["logsumexp"] == pytest.approx([float(torch.logsumexp(x[i : i + 2], 0)) for i in (0, 2)])


@pytest.mark.parametrize("rows", [0, 1, 3, 5, 8])
def test_rows_of_another_level_are_refused(batch: Batch, rows: int) -> None:
    x, has = torch.zeros(rows), f"x has {rows} rows, level "
    assert f"{has}E has 4: rows would be misaligned" in said(batch.spread, x, "E", "N")
    assert f"{has}E has 4" in said(batch.gather, x, "E", "G", "sum")
    assert f"{has}E has 4" in said(batch.gather, x, "E", batch.key("E", batch.uid_E), "mean")
    assert f"{has}E has 4" in said(batch.lag, x, 1, "E", "G")
    assert f"{has}E has 4" in said(batch.scan, x, 1.0, "E", "G")
    assert f"{has}E has 4" in said(batch.scan, x, 0.0, "E", batch.key("E", batch.uid_E % 2))
    assert f"c has {rows} rows, level E has 4" in said(batch.scan, batch.reward_E, x, "E", "G")


def test_the_trial(batch: Batch) -> None:
    found = said(batch.spread, batch.reward_E, "G", "N")
    assert "x has 4 rows, level G has 2: rows would be misaligned. Give one value per row of G." in found
    assert "K, S, E" in found, "the levels that it may be of"
    assert "x has 4 rows, level N has 8" in said(batch.scan, batch.reward_E, 1.0, "N", "E")
    assert "x has 3 rows, level K has 4" in said(batch.lag, torch.zeros(3), 1)
    assert "no rows" in said(batch.spread, torch.tensor(1.0), "E", "N")
    assert "is list and no tensor" in said(batch.spread, [1.0] * 4, "E", "N")


def test_a_batch_that_is_out_of_order_says_the_same(batch: Batch) -> None:
    part = batch.micro(torch.tensor([3, 0, 2]))  # all episodes stay
    assert "x has 3 rows, level E has 4" in said(part.spread, torch.zeros(3), "E", "N")
    assert "x has 8 rows, level N has 6" in said(part.scan, torch.zeros(8), 1.0, "N", "G")


def test_what_is_no_level_is_named(batch: Batch) -> None:
    for f, args in (
        (batch.gather, (batch.reward_E, "E", "X", "sum")),
        (batch.gather, (batch.reward_E, "X", "G", "sum")),
        (batch.spread, (batch.reward_E, "X", "N")),
        (batch.spread, (batch.reward_E, "E", "X")),
        (batch.scan, (batch.reward_E, 1.0, "X", "G")),
        (batch.lag, (batch.reward_E, 1, "E", "X")),
        (batch.key, ("X", batch.reward_E)),
        (batch.size, ("X",)),
    ):
        assert "'X' is no level" in said(f, *args) and "N ⊂ K ⊂ S ⊂ E ⊂ G" in said(f, *args)
    assert "None is no level" in said(batch.level, "E", None)


@pytest.mark.parametrize("where", [torch.ones(4), torch.ones(4, dtype=torch.int64), [True] * 4, 1.0])
def test_a_mask_is_of_booleans(batch: Batch, where: Any) -> None:
    for how in ("sum", "count", "mean", "any"):
        assert "no mask of booleans" in said(batch.gather, batch.reward_E, "E", "G", how, where=where)
    assert "no mask of booleans" in said(centre, batch.reward_E, batch.level("E", "G"), where=where)
    assert "no mask of booleans" in said(batch.time_order, "E", "G", where)


def test_a_mask_has_the_rows_of_the_level(batch: Batch) -> None:
    on = torch.ones(8, dtype=torch.bool)
    assert "where has 8 rows, level E has 4" in said(batch.gather, batch.reward_E, "E", "G", "count", where=on)
    assert "where has 8 rows, level E has 4" in said(batch.time_order, "E", "G", on)
    assert "several" in said(batch.gather, batch.reward_E, "E", "G", "sum", where=on.view(4, 2))


def test_a_key_without_a_batch(batch: Batch) -> None:
    key, x = Key(torch.tensor([0, 0, 1]), 2), torch.zeros(4)
    assert "x has 4 rows, the key has 2" in said(key.spread, x)
    assert "x has 4 rows, the key has 3" in said(gather, x, key)
    assert "x has 4 rows, the key has 3" in said(segment.deviations, x, key)
    assert "b has 4 rows, the partition has 3" in said(scan, x, 1.0, key.index)
    assert "c has 4 rows, the partition has 3" in said(scan, torch.zeros(3), x, key.index)
    assert "x has 4 rows, the partition has 3" in said(lag, x, 1, key.index)
    assert scan(torch.ones(3), torch.tensor(1.0), key.index).tolist() == [2, 1, 1]


def test_pairs_are_of_episodes(batch: Batch) -> None:
    index = torch.tensor([1])
    paired = batch.with_columns(win_P=index, lose_P=index + 1, margin_P=torch.ones(1))
    x_N: Tensor = torch.zeros(8)
    assert "x has 8 rows, level E has 4" in said(paired.pairs.gap, x_N)
    assert "x has 8 rows, level E has 4" in said(paired.pairs.take(index - 1).both, x_N > 0)
    assert paired.pairs.gap(torch.tensor([0.0, 3.0, 1.0, 0.0])).tolist() == [2.0]


def test_a_term_over_another_level(batch: Batch) -> None:
    assert "over has 4 rows, level N has 8" in said(Term("x", batch.judged_E).weights, batch)
    assert Term("x", batch.judged_E, at="E").weights(batch).tolist() == [0.25] * 4
