"""Episodes by hand: numbers that files and batches keep, the usual episode, and learning under another prompt."""

from typing import Any

import numpy as np
import pytest
import torch

from gruppo.data import Episode, Note, Sequence, Source, Status, Turn, Use, pack, single_turn
from gruppo.data.episode import FLAGS


def test_numbers_that_stand_in_files() -> None:
    """They are written to disk and into columns: an old file must mean the same tomorrow."""
    assert {s.name: int(s) for s in Source} == {
        "ENV": 0, "POLICY": 1, "EXPERT": 2, "HINT": 3, "FORCED": 4, "OPPONENT": 5, "INJECTED": 6,
    }  # fmt: skip
    assert {s.name: int(s) for s in Status} == {
        "OK": 0, "TRUNCATED": 1, "OPEN": 2, "INVALID": 3, "ENV_ERROR": 4, "TIMEOUT": 5, "CANCELLED": 6,
    }  # fmt: skip
    assert {u.name: int(u) for u in Use} == {"LEARN": 0, "BASELINE": 1, "NONE": 2, "APART": 3}
    assert FLAGS == {"void": 1, "invalid": 2, "truncated": 4, "patched": 8, "repeated": 16, "edit": 32}


def test_what_is_judged() -> None:
    assert {s for s in Status if s.judged} == {Status.OK, Status.TRUNCATED, Status.INVALID}


def test_what_is_not_said() -> None:
    note, turn = Note(np.zeros(1, np.float32)), Turn(1, 2)
    assert (note.level, note.version) == ("E", -1)
    assert (turn.sequence, turn.obs_start, turn.obs_stop, turn.agent, turn.reward, turn.tools) == (
        0,
        0,
        0,
        "policy",
        {},
        (),
    )
    e = Episode(1, "t", "g", [], [])
    assert (e.status, e.use, e.source, e.replayed, e.step) == (Status.OK, Use.LEARN, Source.POLICY, False, -1)
    assert (e.reward, e.notes, e.text, e.error, e.final_state) == ({}, {}, "", "", "")
    assert (turn.tag, turn.seconds, turn.text, e.parent, e.fork, e.asked) == ("", 0.0, "", -1, -1, "")
    assert e.reward is not Episode(2, "t", "g", [], []).reward


def usual(**fields: Any) -> Episode:
    logp = np.array([-1.0, -2.0, -3.0])
    return single_turn(5, "task", "group", np.array([1, 2]), np.array([7, 8, 9]), logp, 4, **fields)


def test_the_usual_episode() -> None:
    e = usual(temperature=0.5, allowed=[np.array([7, 1]), np.array([8]), np.array([9, 2])], text="x", step=3)
    [s], [t] = e.sequences, e.turns
    assert (e.uid, e.task, e.group, e.source, e.text, e.step) == (5, "task", "group", Source.POLICY, "x", 3)
    assert s.ids.tolist() == [1, 2, 7, 8, 9] and s.prompt_len == 2 and s.train_as is None
    assert s.source.tolist() == [0, 0, 1, 1, 1] and s.source.dtype == np.int8
    assert np.isnan(s.logp[:2]).all() and s.logp[2:].tolist() == [-1, -2, -3] and s.logp.dtype == np.float32
    assert s.version.tolist() == [-1, -1, 4, 4, 4] and s.version.dtype == np.int32
    assert s.temperature is not None and s.temperature.tolist() == [0.5] * 5 and s.temperature.dtype == np.float32
    assert s.allowed is not None and {p: x.tolist() for p, x in s.allowed.items()} == {2: [7, 1], 3: [8], 4: [9, 2]}
    assert (t.start, t.stop, t.obs_start, t.obs_stop, t.sequence) == (2, 5, 0, 2, 0)


@pytest.mark.parametrize("temperature", [None, 1.0])
def test_temperature_one_is_not_written_down(temperature: float | None) -> None:
    s = usual(temperature=temperature).sequences[0]
    assert s.temperature is None and s.allowed is None


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_any_other_is(temperature: float) -> None:
    assert usual(temperature=temperature).sequences[0].temperature.tolist() == [temperature] * 5


def test_versions_of_each_token_and_sources_of_the_prompt() -> None:
    logp = np.zeros(2)
    version, who = np.array([3, 4], np.int32), np.array([Source.ENV, Source.HINT], np.int8)
    e = single_turn(
        1, "t", "g", np.array([1, 2]), np.array([7, 8]), logp, version, prompt_source=who, source=Source.EXPERT
    )
    s = e.sequences[0]
    assert s.version.tolist() == [-1, -1, 3, 4] and s.source.tolist() == [0, Source.HINT, Source.EXPERT, Source.EXPERT]
    assert e.source == Source.EXPERT


def test_totals() -> None:
    e = usual(reward={"task": 1.0, "form": 0.25})
    e.turns[0].reward = {"step": 0.5}
    assert e.total == 1.75 and e.tokens == 3
    assert np.isnan(usual().total), "nothing was judged"
    e.status = Status.ENV_ERROR
    assert np.isnan(e.total), "a failure is no reward"


# under another prompt


def changed(other: list[int]) -> Sequence:
    return Sequence(
        ids=np.array([1, 2, 3, 7, 8]),
        source=np.array([0, 0, 3, 1, 1], np.int8),
        logp=np.array([np.nan, np.nan, np.nan, -1, -2], np.float32),
        version=np.array([-1, -1, 5, 6, 7], np.int32),
        prompt_len=3,
        temperature=np.array([0.1, 0.2, 0.3, 0.4, 0.5], np.float32),
        allowed={3: np.array([7, 9]), 4: np.array([8])},
        node=np.array([20, 21, 22, 23, 24]),
        train_as=np.array(other),
    )


@pytest.mark.parametrize("other", [[11, 12], [11, 12, 13, 14, 15], [11, 12, 13], []])
def test_every_column_moves_with_the_answer(other: list[int]) -> None:
    """What stood for the old prompt is gone: the new one was given, by nobody's luck, at temperature 1."""
    old, n = changed(other), len(other)
    s = old.trained()
    assert s.ids.tolist() == [*other, 7, 8] and s.prompt_len == n and s.train_as is None
    assert s.source.tolist() == [0] * n + [1, 1] and s.source.dtype == np.int8
    assert np.isnan(s.logp[:n]).all() and s.logp[n:].tolist() == [-1, -2]
    assert s.version.tolist() == [-1] * n + [6, 7] and s.version.dtype == np.int32
    assert s.temperature is not None and s.temperature.tolist() == pytest.approx([1.0] * n + [0.4, 0.5])
    assert s.allowed is not None and {p: x.tolist() for p, x in s.allowed.items()} == {n: [7, 9], n + 1: [8]}
    assert s.node is not None and s.node.tolist() == [-1] * n + [23, 24]
    assert s.trained() is s and old.ids.tolist() == [1, 2, 3, 7, 8]


def test_what_was_not_there_is_not_made() -> None:
    s = usual(train_as=np.array([4])).sequences[0].trained()
    assert s.temperature is None and s.allowed is None and s.node is None


def test_a_batch_of_it() -> None:
    """Columns of the answer, at the places they have now."""
    e = Episode(3, "t", "g", [changed([11, 12])], [Turn(3, 5)], reward={"task": 1.0})
    batch = pack([e])
    assert batch.token_N.tolist() == [7, 8] and batch.version_N.tolist() == [6, 7]
    assert batch.temperature_N.tolist() == pytest.approx([0.4, 0.5]) and batch.node_N.tolist() == [23, 24]
    assert batch.allowed is not None and batch.allowed.length.tolist() == [2, 1]
    assert batch.changed_S.tolist() == [True] and batch.at_N.tolist() == [2, 3]
    same = pack([Episode(3, "t", "g", [changed([1, 2, 3])], [Turn(3, 5)])])
    assert same.changed_S.tolist() == [False], "the same prompt is no other"
    assert torch.isnan(same.reward_E).tolist() == [True]
