"""The work of an optimiser step, shared out to several ranks: every sequence once, about equal work."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making_episodes import ALL, LAW, answer, episode_lists

from gruppo.data import Batch, Episode, micro_batches, micro_rows, pack, single_turn
from gruppo.data.prefix import WORTH

NEVER = float("inf")


def lengths(batch: Batch) -> torch.Tensor:
    """Input tokens of each sequence, in the longest of its views."""
    return torch.stack([torch.bincount(v.seq_M, minlength=batch.size("S")) for v in batch.views.values()]).amax(0)


def computed(batch: Batch, rows_S: torch.Tensor) -> int:
    """Rows that a forward of these sequences computes: what they share counts once."""
    return max(len(view.tree()[0].ids_M) for view in batch.micro(rows_S).views.values())


@LAW
@given(episode_lists(), st.sampled_from([1, 7, 30, 10**9]), st.integers(1, 5), st.sampled_from([WORTH, 0, NEVER]))
def test_every_sequence_is_in_one_micro_batch_of_one_share(
    episodes: list[Episode], tokens: int, shares: int, share: float
) -> None:
    batch = pack(episodes, views=ALL, share=share)
    made = micro_rows(batch, tokens, shares)
    assert len(made) == shares
    everything = [int(s) for mine in made for rows_S in mine for s in rows_S]
    assert sorted(everything) == list(range(batch.size("S")))
    assert all(len(rows_S) and torch.equal(rows_S, rows_S.sort().values) for mine in made for rows_S in mine)
    for rows_S in (rows_S for mine in made for rows_S in mine if len(rows_S) > 1):
        assert computed(batch, rows_S) <= tokens  # a longer sequence is alone


@LAW
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 6))
def test_shares_are_equal_within_the_longest_sequence(sizes: list[int], shares: int) -> None:
    batch = pack([answer(i, n, f"g{i}") for i, n in enumerate(sizes)], share=NEVER)
    length_S = lengths(batch)
    work = [sum(int(length_S[rows_S].sum()) for rows_S in mine) for mine in micro_rows(batch, 10**9, shares)]
    fair, longest = int(length_S.sum()) / shares, int(length_S.max())
    assert sum(work) == int(length_S.sum()) and all(abs(w - fair) <= longest for w in work)


@pytest.mark.parametrize("shares", [2, 3, 5])
def test_shares_of_prompts_that_are_computed_once(shares: int) -> None:
    """Six groups of eight answers to a prompt of 40: a prompt counts once, and once more where a share begins in the
    middle of its group. Counted by sequences, the first share would have the long answers and twice the work."""
    rng, episodes = np.random.default_rng(0), list[Episode]()
    for g in range(6):
        for _ in range(8):
            ids = rng.integers(10, 99, int(rng.integers(1, 30)))
            logp = np.full(len(ids), -1.0, np.float32)
            episodes.append(single_turn(len(episodes), "t", f"g{g}", 1000 * g + np.arange(40), ids, logp, 0))
    batch = pack(episodes, share=WORTH)
    made = micro_rows(batch, 10**9, shares)
    assert all(len(mine) == 1 for mine in made)  # nothing else cuts a share
    work, alone = [computed(batch, mine[0]) for mine in made], computed(batch, torch.arange(batch.size("S")))
    longest = int(lengths(batch).max())
    assert alone <= sum(work) <= alone + (shares - 1) * 40
    assert all(abs(w - alone / shares) <= 2 * longest for w in work)
    assert sum(work) < int(lengths(batch).sum()) / 2  # the prompts are shared indeed


def test_a_share_may_be_empty_and_so_may_all_of_them() -> None:
    one = pack([answer(0)])
    made = micro_rows(one, 100, 3)
    assert sorted(len(mine) for mine in made) == [0, 0, 1]
    assert [[rows_S.tolist() for rows_S in mine] for mine in micro_rows(pack([]), 100, 2)] == [[[]], []]


def test_one_share_is_the_cut_of_a_process_alone() -> None:
    batch = pack([answer(i, n) for i, n in enumerate((3, 9, 4, 4, 1))], share=NEVER)
    [mine] = micro_rows(batch, 11)
    assert [rows_S.tolist() for rows_S in mine] == [b.row_S.tolist() for b in micro_batches(batch, 11)]
    assert len(mine) > 2


def test_the_cut_of_a_share_goes_by_tokens_too() -> None:
    """Eight sequences of six tokens in two shares of 24: with 12 tokens at a time two micro-batches each."""
    batch = pack([answer(i, 4, f"g{i}") for i in range(8)], share=NEVER)
    assert [[len(rows_S) for rows_S in mine] for mine in micro_rows(batch, 12, 2)] == [[2, 2], [2, 2]]
