"""Edges of episodes and batches: numbers in columns, steps of a turn, components that are replaced or absent."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from making_episodes import answer

from gruppo.data import Note, Source, ToolCall, Turn, in_steps, name_hash, pack, segment
from gruppo.data.episode import FLAGS
from gruppo.data.store import load_episodes, save_episodes


@pytest.mark.parametrize(
    ("name", "number"), [("expert", 2), ("hint", 3), ("forced", 4), ("opponent", 5), ("injected", 6), ("policy", 1)]
)
def test_who_wrote_a_token_is_a_number(name: str, number: int) -> None:
    batch = pack([answer(1, 2, source=Source[name.upper()])])
    assert batch.source_N.tolist() == [number] * 2 and len(Source) == 7


def test_flags_of_a_turn_are_bits() -> None:
    e = answer(1)
    bits = {"void": 1, "invalid": 2, "truncated": 4, "patched": 8, "repeated": 16, "edit": 32}
    for flags, number in [*(({name}, bit) for name, bit in bits.items()), (set(FLAGS), 63)]:
        e.turns[0].flags = frozenset(flags)
        assert pack([e]).flags_K.tolist() == [number]


def test_what_is_not_told() -> None:
    """-1: not known. A turn observes nothing; a call went well; an episode is of today."""
    e = answer(1)
    assert (e.step, e.index, Note(np.zeros(1, np.float32)).version, pack([e]).index_E.tolist()) == (-1, -1, -1, [-1])
    turn = Turn(2, 5)
    assert turn.obs_start == turn.obs_stop == 0 and ToolCall("add", "1 2", 0.1).ok
    assert not e.replayed and pack([e]).replayed_E.tolist() == [False]


# sequences and steps


def test_a_sequence_goes_on_with_what_could_be_drawn() -> None:
    s = answer(1, 2).sequences[0]
    on = s.extended(np.array([7, 8]), Source.POLICY, np.array([-1.0, -2.0]), 3, 0.5, [np.array([7]), np.array([8, 9])])
    assert on.allowed is not None and {p: x.tolist() for p, x in on.allowed.items()} == {4: [7], 5: [8, 9]}
    assert on.temperature is not None and on.temperature.tolist() == [1, 1, 1, 1, 0.5, 0.5]
    assert on.temperature.dtype == np.float32 and np.isnan(s.extended(np.array([7]), Source.HINT).logp[-1])


def test_what_was_said_of_a_turn_goes_to_its_first_or_last_step() -> None:
    """What was seen before it to the first, what came of it to the last; what it did as a whole to none. No step is
    empty, also where the last one ends with the turn."""
    e, call = answer(1, 6), ToolCall("add", "1 2", 0.1)
    [turn] = e.turns
    turn.state, turn.action_key, turn.tools, turn.reward = "s", "a", (call,), {"tool": 0.5}
    turn.obs_start, turn.obs_stop = 0, 1  # a token of the prompt is given, and not observed
    steps = in_steps(e, [4, 8]).turns
    assert [(t.start, t.stop, t.obs_start, t.obs_stop) for t in steps] == [(2, 4, 0, 1), (4, 8, 4, 4)]
    assert [(t.state, t.action_key, t.tools, t.reward) for t in steps] == [
        ("s", "", (), {}),
        ("", "", (call,), {"tool": 0.5}),
    ]


@pytest.mark.parametrize("prompt", [[1, 2], [1], [1, 2, 3, 4]])
def test_steps_are_found_under_another_prompt(prompt: list[int]) -> None:
    """Turns say where they are in what was sampled; learned is the answer after a prompt of another length."""
    e = in_steps(answer(1, 6, train_as=np.array(prompt)), [4, 7])
    assert pack([e, answer(2, 1)]).turn_N.tolist() == [0, 0, 1, 1, 1, 2, 3]


# components


def test_a_component_pays_where_it_is_and_is_not_replaced() -> None:
    """`style` of the first is replaced by `form`; the second has a `form` of its turn alone; the third has nothing."""
    one = answer(1, reward={"style": 4.0, "form": 0.5, "task": 1.0}, replaced=frozenset({"style"}))
    one.turns[0].reward = {"style": 8.0, "task": 2.0}
    two = answer(2, reward={"task": 0.0})
    two.turns[0].reward = {"form": 0.25}
    batch = pack([one, two, answer(3)], dtype=torch.float64)
    assert batch.components == ("form", "style", "task")
    assert batch.paid_EC.tolist() == [[True, False, True], [True, False, True], [False] * 3]
    assert batch.return_EC.tolist() == [[0.5, 0.0, 3.0], [0.25, 0.0, 0.0], [0.0] * 3]
    assert batch.reward_K.tolist() == [2.0, 0.25, 0.0]
    assert (one.total, two.total) == (3.5, 0.25) and batch.reward_E[:2].tolist() == [3.5, 0.25]
    assert np.isnan(answer(3).total) and bool(batch.reward_E[2].isnan())


def test_replaced_before_anything_was_paid() -> None:
    batch = pack([answer(1, replaced=frozenset({"task"}))])
    assert batch.paid_EC.shape == batch.return_EC.shape == (1, 0) and batch.paid_EC.dtype == torch.bool


def test_answers_are_the_same_number_where_they_are_the_same_and_0_is_none() -> None:
    answers = pack([answer(i, answer=a) for i, a in enumerate(("7", "", "8", "7"))]).answer_E.tolist()
    assert answers == [name_hash("7"), 0, name_hash("8"), name_hash("7")] and len(set(answers)) == 3


# batches, parts and files


def test_the_newest_weights_of_a_batch() -> None:
    open_one, fresh = answer(1, 3), answer(2, 2)
    open_one.sequences[0].version[2:] = [4, 4, 6]
    fresh.sequences[0].version[2:] = [6, 6]
    assert pack([open_one, fresh]).newest_N.tolist() == [False, False, True, True, True]
    assert pack([]).newest_N.tolist() == []


def test_one_part_is_one() -> None:
    x = torch.tensor([1.0, 3.0])
    assert segment.one_part(x).size == 1 and segment.gather(x, segment.one_part(x), "mean").tolist() == [2.0]
    assert segment.deviations(x, segment.one_part(x))[1].tolist() == [1.0]  # of the population, unless told


def test_a_file_from_before_anything_was_replaced(tmp_path: Path) -> None:
    episodes = [answer(i, replaced=frozenset({"task"})) for i in range(2)]
    save_episodes(tmp_path / "new.arrow", episodes)
    assert [e.replaced for e in load_episodes(tmp_path / "new.arrow")] == [{"task"}] * 2
    table: Any = pa.ipc.open_file(tmp_path / "new.arrow").read_all().drop_columns(["replaced"])
    with pa.ipc.new_file(tmp_path / "old.arrow", table.schema) as writer:
        writer.write_table(table)
    assert [e.replaced for e in load_episodes(tmp_path / "old.arrow")] == [frozenset()] * 2
