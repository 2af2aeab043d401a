"""Packing: the cases that were thought of one by one, what is refused, and the masks by table."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from making_episodes import (
    AGENTS,
    ALL,
    LAW,
    answer,
    episode_lists,
    random_episodes,
)

from gruppo.data import Batch, Episode, Note, Sequence, Source, Status, Turn, Use, pack, single_turn

# ---- the cases that were thought of one by one


def two_seats() -> Episode:
    """Two agents with a context each speak in turn: a b a b; rows lie a a b b."""

    def seat(first: int) -> Sequence:
        source = np.array([0, 1, 0, 1], np.int8)
        return Sequence(first + np.arange(4), source, np.zeros(4, np.float32), np.zeros(4, np.int32), 1)

    turns = [
        Turn(1, 2, sequence=0, agent="a", reward={"a": 1.0}),
        Turn(1, 2, sequence=1, agent="b", reward={"b": 10.0}),
        Turn(3, 4, sequence=0, agent="a", reward={"a": 2.0}),
        Turn(3, 4, sequence=1, agent="b", reward={"b": 20.0}),
    ]
    return Episode(1, "t", "g", [seat(100), seat(200)], turns, notes={"v": Note(np.arange(4, dtype=np.float32), "K")})


def test_two_agents_in_turn_are_scanned_and_lagged_in_time_not_in_row_order():
    batch = pack([two_seats()])
    assert batch.turn_index_K.tolist() == [0, 2, 1, 3]
    assert batch.reward_K.tolist() == [1, 2, 10, 20]
    assert batch.scan(batch.reward_K, 1.0, "K").tolist() == [33, 22, 32, 20]
    assert batch.lag(batch.reward_K, 1).tolist() == [0, 10, 1, 2]
    assert batch.lag(batch.reward_K, -1, fill=-1).tolist() == [10, 20, 2, -1]
    assert batch.scan(batch.reward_K, 1.0, "K", "S").tolist() == [3, 2, 30, 20]  # inside one seat
    assert batch.columns["note_v_K"].tolist() == [0, 2, 1, 3]  # a note follows Episode.turns


def test_each_seat_has_its_own_reward():
    batch = pack([two_seats(), dataclasses.replace(two_seats(), uid=2)])
    key = batch.key("K", batch.up("K", "E"), batch.agent_K)
    assert batch.gather(batch.reward_K, "K", key).tolist() == [3, 30, 3, 30]
    assert batch.components == ("a", "b") and batch.agents == ("a", "b")
    assert torch.isnan(batch.reward_KC[0, 1])  # not judged is not 0


def test_a_turn_object_that_two_episodes_share_has_its_own_time_in_each():
    first = two_seats()
    second = Episode(2, "t", "g", first.sequences[:1], [first.turns[2]])
    assert pack([first, second]).turn_index_K.tolist() == [0, 2, 1, 3, 0]


def test_tokens_given_before_an_action_belong_to_the_turn_that_follows():
    source = np.array([0, 3, 1, 0, 3, 1, 6], np.int8)
    n = len(source)
    s = Sequence(np.arange(n), source, np.zeros(n, np.float32), np.zeros(n, np.int32), 2)
    batch = pack([Episode(1, "t", "g", [s], [Turn(2, 3), Turn(5, 6)])])
    assert batch.turn_N.tolist() == [0, 0, 1, 1, 1]  # what follows the last turn belongs to it


def test_turns_need_not_be_stored_in_the_order_of_their_tokens():
    s = answer(1, n=4).sequences[0]
    batch = pack([Episode(1, "t", "g", [s], [Turn(4, 6), Turn(4, 4), Turn(2, 4)])])
    assert batch.turn_index_K.tolist() == [2, 1, 0] and batch.turn_N.tolist() == [0, 0, 2, 2]


def test_a_hint_in_the_prompt_is_a_given_decision_unless_train_as_takes_it_away():
    marks = np.array([0, 3], np.int8)
    kept, gone = answer(1, prompt_source=marks), answer(2, prompt_source=marks, train_as=np.array([5]))
    batch = pack([kept, gone], views=ALL)
    assert batch.source_N.tolist() == [3, 1, 1, 1, 1, 1, 1]
    for view in batch.views.values():
        assert len(view.at_N) == batch.size("N")
    assert batch.on_policy_N.tolist() == [False, True, True, True, False, False, False]
    gone.notes["n"] = Note(np.array([1, 2, 3], np.float32), "N")
    assert pack([gone]).columns["note_n_N"].tolist() == [1, 2, 3]


def test_learning_under_the_very_prompt_that_was_sampled_is_no_change():
    same, other = answer(1, train_as=np.array([1, 2])), answer(2, train_as=np.array([2, 1]))
    assert pack([same, other]).changed_S.tolist() == [False, True]


def test_an_expert_answer_is_an_expert_episode():
    batch = pack([answer(1, source=Source.EXPERT, reward={"task": 1.0}), answer(2, reward={"task": 0.0})])
    assert batch.source_E.tolist() == [Source.EXPERT, Source.POLICY]
    assert not batch.policy_N[:3].any() and batch.policy_N[3:].all()


def test_a_nan_component_leaves_an_episode_unjudged_and_a_turn_without_it():
    e = answer(1, reward={"task": 1.0, "form": math.nan})
    e.turns[0].reward = {"x": math.nan, "y": 2.0, "z": math.inf}
    batch = pack([e])
    assert math.isnan(batch.reward_E[0]) and not batch.judged_E[0]
    assert batch.reward_K.tolist() == [math.inf]


# ---- refusals


def bad_turn() -> Episode:
    e = answer(1)
    e.turns[0].sequence = -1
    return e


def odd_flag() -> Episode:
    e = answer(1)
    e.turns[0].flags = frozenset({"void", "odd"})
    return e


def two_levels() -> list[Episode]:
    return [answer(i, notes={"n": Note(np.zeros(1, np.float32), level)}) for i, level in enumerate("EK")]


@pytest.mark.parametrize(
    ("episodes", "says"),
    [
        ([answer(1), answer(1)], "uid 1 appears twice"),
        ([dataclasses.replace(answer(1), turns=[])], "holds no turn"),
        ([bad_turn()], "sequence=-1"),
        ([odd_flag()], r"flags \['odd'\]"),
        ([single_turn(1, "t", "g", np.zeros(0, np.int64), np.arange(2), np.zeros(2), 0)], "very first token"),
        ([answer(1, notes={"n": Note(np.zeros(5, np.float32), "N")})], "5 values"),
        ([answer(1, notes={"n": Note(np.zeros(1, np.float32), "Q")})], "level 'Q'"),
        (two_levels(), "level 'K', elsewhere 'E'"),
    ],
)
def test_what_would_slip_is_refused_with_a_sentence(episodes, says):
    with pytest.raises(ValueError, match=says):
        pack(episodes)


def test_an_unknown_view_names_the_nearest():
    with pytest.raises(ValueError, match="without_hints"):
        pack([answer(1)], views=("without_hint",))


def test_columns_of_a_sequence_must_be_as_long_as_its_ids():
    with pytest.raises(ValueError, match=r"Sequence\.logp has 1 entries for 2 ids"):
        Sequence(np.arange(2), np.zeros(2, np.int8), np.zeros(1, np.float32), np.zeros(2, np.int32), 1)


# ---- masks, by table

LEARNED = {Status.OK, Status.TRUNCATED, Status.INVALID}  # an open episode goes on, a failed one taught nothing


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("use", Use)
def test_masks_follow_status_use_and_source(status, use):
    source = np.array([Source.ENV, *Source], np.int8)
    n = len(source)
    logp = np.zeros(n, np.float32)
    changed = np.array([5])

    def episode(uid: int, train_as: np.ndarray | None, reward: dict[str, float]) -> Episode:
        s = Sequence(np.arange(n), source, logp, np.zeros(n, np.int32), 1, train_as=train_as)
        return Episode(uid, "t", "g", [s], [Turn(1, n)], reward, status, use)

    batch = pack([episode(1, None, {"task": 1.0}), episode(2, changed, {}), episode(3, None, {"task": math.nan})])
    keep = torch.arange(batch.size("N")) % 2 == 0
    batch = batch.with_columns(keep_N=keep)
    mine = batch.source_N == Source.POLICY
    learns = status in LEARNED and use in (Use.LEARN, Use.APART)
    # Without a reward there is nothing to compare: only what stands apart is learned all the same.
    learned = torch.tensor([learns, learns and use == Use.APART, learns and use == Use.APART])
    assert torch.equal(batch.learn_E, learned)
    counts = use in (Use.LEARN, Use.BASELINE)
    assert batch.judged_E.tolist() == [status in LEARNED and counts, False, False]
    alive = (status in LEARNED or status == Status.OPEN) and use in (Use.LEARN, Use.APART)
    assert batch.alive_E.tolist() == [alive] * 3
    assert torch.equal(batch.sampled_N, mine & alive)
    assert torch.equal(batch.policy_N, mine & learned[batch.episode_N])
    assert torch.equal(batch.learn_N, mine & learned[batch.episode_N] & keep)
    assert torch.equal(batch.on_policy_N, mine & torch.tensor([True, False, True])[batch.episode_N])
    assert batch.judged_E[0] == (status.judged and counts)


@LAW
@given(episode_lists())
def test_agents_are_named_in_order(episodes):
    assert set(pack(episodes).agents) <= set(AGENTS)
    assert list(pack(episodes).agents) == sorted(pack(episodes).agents)


def test_packing_returns_a_batch_of_the_wanted_precision():
    episodes = random_episodes(3, 3)
    for dtype in (torch.float32, torch.float64):
        batch = pack(episodes, dtype=dtype)
        assert isinstance(batch, Batch)
        for name in ("logp_gen_N", "temperature_N", "weight_N", "reward_E", "reward_EC", "reward_K", "reward_KC"):
            assert batch.columns[name].dtype == dtype, name
