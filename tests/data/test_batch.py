"""Levels, time order, and parts of a batch, against loops."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making_episodes import LAW, answer, episode_lists, random_episodes

from gruppo.data import Batch, Episode, Ragged, pack
from gruppo.stages import StepRecord

LEVELS = "NKSEG"


def rows_in(batch: Batch, high: str, row: int, low: str) -> list[int]:
    return [i for i, r in enumerate(batch.up(low, high).tolist()) if r == row]  # type: ignore[arg-type]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.nan_to_num(nan=-99.0), b.nan_to_num(nan=-99.0)) and a.dtype == b.dtype


# ---- levels


@LAW
@given(episode_lists())
def test_levels_nest_and_going_up_in_steps_is_going_up_at_once(episodes):
    batch = pack(episodes)
    for i, low in enumerate(LEVELS):
        for j in range(i, 5):
            for k in range(j, 5):
                mid, high = LEVELS[j], LEVELS[k]
                assert torch.equal(batch.up(low, high), batch.up(mid, high)[batch.up(low, mid)])
    for low, high in (("N", "K"), ("K", "S"), ("S", "E"), ("N", "E")):
        assert (batch.up(low, high).diff() >= 0).all()  # neighbours


@LAW
@given(episode_lists(), st.sampled_from(["NK", "NS", "NE", "NG", "KS", "KE", "KG", "SE", "SG", "EG"]))
def test_gather_after_spread_is_the_value_times_the_rows(episodes, pair):
    batch = pack(episodes, dtype=torch.float64)
    low, high = pair
    x = torch.arange(1.0, batch.size(high) + 1, dtype=torch.float64)
    count = [len(rows_in(batch, high, r, low)) for r in range(batch.size(high))]
    down = batch.spread(x, high, low)
    assert batch.gather(down, low, high).tolist() == [v * n for v, n in zip(x.tolist(), count, strict=True)]
    assert batch.gather(down, low, high, "count").tolist() == count
    mean = batch.gather(down, low, high, "mean", fill=math.nan).tolist()
    assert all(math.isnan(m) if n == 0 else m == v for m, n, v in zip(mean, count, x.tolist(), strict=True))


def test_going_the_wrong_way_is_refused():
    batch = pack([answer(1)])
    with pytest.raises(ValueError, match="level N lies below E"):
        batch.spread(batch.weight_N, "N", "E")


@LAW
@given(episode_lists())
def test_a_key_of_columns_is_a_dict_of_tuples(episodes):
    batch = pack(episodes)
    key = batch.key("K", batch.group_K, batch.state_K, batch.agent_K)
    rows = list(zip(batch.group_K.tolist(), batch.state_K.tolist(), batch.agent_K.tolist(), strict=True))
    total: dict[Any, int] = {}
    for r in rows:
        total[r] = total.get(r, 0) + 1
    assert key.spread(batch.gather(batch.reward_K, "K", key, "count")).tolist() == [total[r] for r in rows]
    assert torch.equal(batch.key("K").index, batch.group_K)


def test_a_key_refuses_columns_of_another_level():
    batch = pack([answer(1), answer(2)])
    with pytest.raises(ValueError, match="level K"):
        batch.key("K", batch.uid_N)


# ---- time


def in_time(batch: Batch, episodes: list[Episode], low: str, within: str) -> list[list[int]]:
    """The rows of `low` of each row of `within`, in time: by episode, turn and position."""
    turn = {"N": "turn_index_K", "K": "turn_index_K"}.get(low)
    if turn:
        time = batch.spread(batch.columns[turn], "K", low).tolist()  # type: ignore[arg-type]
    elif low == "S":
        time = [min(i for i, t in enumerate(e.turns) if t.sequence == j)
                for e in episodes for j in range(len(e.sequences))]  # fmt: skip
    else:
        time = [0] * batch.size("E")
    episode = batch.up(low, "E").tolist()  # type: ignore[arg-type]
    return [
        sorted(rows_in(batch, within, r, low), key=lambda i: (episode[i], time[i], i))
        for r in range(batch.size(within))  # type: ignore[arg-type]
    ]


TIMES = st.sampled_from(["NK", "NS", "NE", "NG", "KS", "KE", "KG", "SE", "SG", "EG", "EE"])


@LAW
@given(episode_lists(), TIMES, st.integers(0, 2**32 - 1), st.booleans())
def test_scan_follows_time_not_rows(episodes, pair, seed, number):
    batch, (low, within) = pack(episodes), pair
    rng = np.random.default_rng(seed)
    b = torch.from_numpy(rng.normal(size=batch.size(low)))
    c = torch.from_numpy(rng.normal(size=batch.size(low)))
    got = batch.scan(b, 0.5 if number else c, low, within)
    for rows in in_time(batch, episodes, low, within):
        y = 0.0
        for i in reversed(rows):
            y = float(b[i]) + (0.5 if number else float(c[i])) * y
            assert got[i].item() == pytest.approx(y, rel=1e-9, abs=1e-9)


@LAW
@given(episode_lists(), TIMES, st.integers(-4, 4))
def test_lag_follows_time_not_rows(episodes, pair, k):
    batch, (low, within) = pack(episodes), pair
    x = torch.arange(batch.size(low))
    got = batch.lag(x, k, low, within, fill=-1).tolist()
    for rows in in_time(batch, episodes, low, within):
        for place, i in enumerate(rows):
            assert got[i] == (rows[place - k] if 0 <= place - k < len(rows) else -1)


@LAW
@given(episode_lists(), TIMES)
def test_the_order_of_time_keeps_rows_of_one_part_together(episodes, pair):
    batch, (low, within) = pack(episodes), pair
    order = batch.time_order(low, within)
    place = torch.argsort(order)
    assert torch.equal(torch.sort(order).values, torch.arange(batch.size(low)))
    for rows in in_time(batch, episodes, low, within):
        assert (
            place[rows].tolist() == list(range(int(place[rows[0]]), int(place[rows[0]]) + len(rows))) if rows else True
        )


def test_gradients_pass_through_time_order():
    batch = pack(random_episodes(6, 5))
    rng = np.random.default_rng(0)
    b, c = (torch.from_numpy(rng.normal(size=batch.size("N"))).requires_grad_() for _ in range(2))
    assert batch._order("N", "E") is not None  # else this proves nothing
    assert torch.autograd.gradcheck(lambda u, v: batch.scan(u, v, "N"), (b, c))
    assert torch.autograd.gradcheck(lambda u: batch.lag(u, 1, "N"), (b,))


def test_nan_of_one_episode_stays_in_it():
    batch = pack(random_episodes(6, 5), dtype=torch.float64)
    x = batch.weight_N.clone()
    bad = batch.episode_N == 2
    clean = batch.scan(x, 0.9, "N")
    assert bad.any() and torch.equal(batch.scan(x.masked_fill(bad, math.nan), 0.9, "N")[~bad], clean[~bad])


# ---- columns


def test_a_column_of_the_wrong_length_is_refused():
    batch = pack([answer(1), answer(2)])
    with pytest.raises(ValueError, match=r"column adv_N has 2 rows, level N has 6.*one value per row of N"):
        batch.with_columns(adv_N=torch.zeros(2))
    with pytest.raises(ValueError, match="column reward_EC has 3 rows, level E has 2"):
        batch.with_columns(reward_EC=torch.zeros(3, 1))


@pytest.mark.parametrize("name", ["adv", "adv_", "adv_n", "NK", "adv_Q"])
def test_a_column_without_a_level_is_refused(name):
    with pytest.raises(ValueError, match="does not end in its level"):
        pack([answer(1)]).with_columns(**{name: torch.zeros(3)})


def test_columns_of_input_positions_are_cut_with_the_batch():
    batch = pack([answer(1), answer(2), answer(3)])
    batch = batch.with_columns(here_M=batch.inputs.ids_M)
    for part in (batch.micro(torch.tensor([2, 0])), batch.minibatch(torch.tensor([1]))):
        assert torch.equal(part.here_M, part.inputs.ids_M)
    with pytest.raises(ValueError, match="level M has"):
        batch.with_columns(here_M=torch.zeros(1))


def test_an_unknown_column_names_the_nearest():
    batch = pack([answer(1)])
    with pytest.raises(AttributeError, match=r"no column 'logp_gne_N'; nearest: logp_gen_N"):
        _ = batch.logp_gne_N
    assert not hasattr(batch, "adv_N") and hasattr(batch.with_columns(adv_N=torch.zeros(3)), "adv_N")


def test_new_columns_leave_the_old_batch_as_it_was_and_masks_see_them():
    old = pack([answer(1, reward={"task": 1.0})])
    assert old.learn_N.all() and old.judged_E.all()
    new = old.with_columns(keep_N=torch.tensor([True, False, True]), reward_E=torch.tensor([math.nan]))
    assert not new.learn_N.any() and not new.judged_E.any()
    part = old.with_columns(keep_N=torch.tensor([True, False, True]))
    assert part.learn_N.tolist() == [True, False, True] and part.judged_E.all()
    assert old.learn_N.all() and old.judged_E.all()


@LAW
@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=8), st.data())
def test_rows_of_a_ragged_column_are_taken_like_rows_of_a_list(lists, data):
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=10))
    length = torch.tensor([len(x) for x in lists])
    values = torch.tensor([v for x in lists for v in x], dtype=torch.int64)
    got = Ragged(length, values).take(torch.tensor(rows, dtype=torch.int64))
    assert got.length.tolist() == [len(lists[r]) for r in rows]
    assert got.values.tolist() == [v for r in rows for v in lists[r]]


# ---- shown


def test_it_is_shown_by_its_sizes_and_not_by_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio.run shows the result of a step to itself: a step took twice as long with all values in it."""
    episodes = random_episodes(0, 5)
    batch = pack(episodes)
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda *_, **__: pytest.fail("a tensor was printed"))
    monkeypatch.setattr(Episode, "__repr__", lambda *_: pytest.fail("an episode was printed"))
    words = repr(StepRecord(3, episodes, batch, {}, drawn=episodes))
    assert f"step=3, {len(episodes)} drawn" in words and f"N={batch.size('N')}, K={batch.size('K')}" in words
    assert "reward_E" in words and len(words) < 2000
