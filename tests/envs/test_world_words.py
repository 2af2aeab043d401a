"""What a run in a world says: turns that do nothing, seats that are not told apart, states that never recur."""

import json
from pathlib import Path

import numpy as np
import pytest

from gruppo.cli import main
from gruppo.data import Episode, Growing
from gruppo.envs.registry import BUILT_IN
from gruppo.methods import method
from gruppo.stages.requires import RecurringStates, SeveralSeats
from gruppo.tasks import load_task
from gruppo.train.worlds import WATCHED, Recurring, declaring, refuse_other_worlds, seats_in

SMALL = ("model=tiny-agent", "prompts=2", "samples=2", "steps=1", "threads=1", "show=0")
SMALL += ("save.tensorboard=no", "save.checkpoint_every=0", "save.episodes_every=1", "eval.every=0")
SMALL += ("eval.prompts=1",)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None, no_picture: None) -> None:
    monkeypatch.chdir(tmp_path)


def said(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["train", *SMALL, *argv]) == code
    out, err = capsys.readouterr()
    return err if code else out


# ---- turns


@pytest.mark.parametrize("name", ["gigpo", "grpo"])
def test_turns_that_the_format_cannot_read_are_the_cause(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = said(capsys, "task=household", "task.format=json", f"method={name}", "sampling.max_tokens=8")
    [line] = [line for line in words.splitlines() if line.startswith("warning: every reward of the first batch is 0")]
    assert "100% of the turns have no action that task.format=json can read" in line
    assert 'It expects a JSON object with an action, such as {"action": "look"}, and the policy writes \'' in line
    assert "task.format=line" in line and "ran out of turns" not in words


def test_actions_that_are_cut_off_are_the_cause(capsys: pytest.CaptureFixture[str]) -> None:
    words = said(capsys, "task=household", "method=gigpo", "sampling.max_tokens=1")
    assert "of the turns were cut off at sampling.max_tokens=1, before their action had ended, such as '" in words
    assert "sampling.max_tokens=8" in words


def test_a_world_in_which_the_policy_acts_has_no_such_warning(capsys: pytest.CaptureFixture[str]) -> None:
    words = said(capsys, "task=guess", "method=gigpo", "prompts=8", "samples=4", "sampling.max_tokens=4")
    assert "of the turns" not in words and "recurred" not in words


WORDY = """
from gruppo.envs import Seen

class Wordy:
    first, later = 3, 200

    def reset(self, task):
        self.turn = 0
        return Seen(" ".join(["go"] * self.first), state="0")

    def step(self, action):
        self.turn += 1
        done = self.turn == 4
        rewards = {"task": 1.0} if done else {}
        return Seen(" ".join(["hall"] * self.later), state=str(self.turn), rewards=rewards, done=done)

class Long(Wordy):
    first = 700

class Mixed(Wordy):
    later = 3

    def reset(self, task):
        self.first = 700 if task.prompt.endswith("2") else 3
        return super().reset(task)
"""


def levels(name: str) -> str:
    Path("wordy_world.py").write_text(WORDY)
    rows = [{"env": f"./wordy_world.py:{name}", "prompt": f"put cup {i}"} for i in range(10)]
    Path("levels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return "task=./levels.jsonl"


def test_an_observation_without_room_is_named_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    words = said(capsys, levels("Wordy"), "sampling.max_tokens=2", "save.name=a")
    assert "4 of 4 episodes ended early, since what they were to see next did not fit into the 512 tokens" in words
    assert "task.window=2" in words and "ran out of turns" not in words
    assert main(["episodes", "runs/a", "--limit", "1"]) == 0
    words = capsys.readouterr().out
    assert "ran out of context" in words and "did not fit" in words


def test_with_a_window_it_has_room(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did not fit" not in said(capsys, levels("Wordy"), "sampling.max_tokens=2", "task.window=0")


def test_a_first_observation_without_room_is_refused_with_its_size(capsys: pytest.CaptureFixture[str]) -> None:
    """The world said so, and not the scorer, which a world has not."""
    words = said(capsys, levels("Long"), code=2)
    assert "The world said: too long: task 'levels/1/" in words and "begins with 706 tokens" in words
    assert "195 too many: this model's context has 512" in words
    assert "max_tokens of at most" not in words


def test_where_some_are_too_long_the_others_are_learned_from(capsys: pytest.CaptureFixture[str]) -> None:
    words = said(capsys, levels("Mixed"), "prompts=9", "sampling.max_tokens=2", "save.name=a")
    assert "2 of 18 episodes failed and were left out. First error: too long: task 'levels/1/" in words
    row = json.loads(Path("runs/a/metrics.jsonl").read_text().splitlines()[-1])
    assert row["failed"] == pytest.approx(2 / 18) and row["turns"] > 1 and row["reward"] == 1.0


# ---- seats


def test_methods_for_seats_are_those_that_declare_it() -> None:
    assert declaring(SeveralSeats()) == ["drmas", "mars", "spiral"]
    assert set(declaring(RecurringStates())) == {"gigpo", "hgpo", "salt"}


def test_a_zero_sum_game_without_credit_of_seats_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = said(capsys, "task=kuhn", "method=grpo", "prompts=6", "samples=4")
    assert "grpo credits an episode with the sum of all seats, which is 0 in every game here" in words
    assert "the returns of first and second differ. Use a method that tells seats apart: drmas, mars, spiral." in words
    assert "return/first" in words and "accuracy 0" not in words and "held-out return first " in words
    assert "gruppo env play kuhn   ·   gruppo train task=kuhn method=drmas" in words
    assert "tells seats apart" not in said(capsys, "task=kuhn", "method=drmas", "prompts=6", "samples=4")


@pytest.mark.parametrize("name", ["spiral", "mars", "drmas"])
def test_methods_of_seats_are_refused_in_a_world_with_one(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name}: .* household has one seat.*kuhn, negotiation, tictactoe, verify"):
        refuse_other_worlds(method(name), load_task("household"))
    for task in ("kuhn", "mix:kuhn+household", "addition"):
        refuse_other_worlds(method(name), load_task(task))
    refuse_other_worlds(method("grpo"), load_task("household"))


def test_a_method_that_cuts_one_answer_is_refused_in_a_world() -> None:
    with pytest.raises(ValueError, match=r"^s_grpo: .* household is played in turns. Use a task of one answer"):
        refuse_other_worlds(method("s_grpo"), load_task("household"))
    refuse_other_worlds(method("s_grpo"), load_task("addition"))


def test_seats_are_those_of_the_worlds() -> None:
    assert {w for w in BUILT_IN if len(seats_in(w)) == 2} == {"kuhn", "negotiation", "tictactoe", "verify"}
    assert seats_in("env:textarena/TicTacToe-v0") == seats_in("agent") == ()
    Path("seats_world.py").write_text(
        """
class World:
    def __init__(self):
        self.seats = ("a", "b")

    def reset(self, task): ...
    def step(self, action): ...

def make():
    return World()
"""
    )
    assert seats_in("./seats_world.py:World") == seats_in("./seats_world.py:make") == ("a", "b")


# ---- states


def walk(uid: int, *states: str) -> Episode:
    made = Growing(uid, "t", "g")
    made.begin(np.array([1]))
    for state in states:
        made.act(np.array([3]), np.zeros(1, np.float32), 0, state=state)
    return made.finish()


def watched(*steps: list[Episode], name: str = "gigpo") -> list[str]:
    look = Recurring(method(name))
    return [look(step) for step in steps]


def test_states_that_never_recur_are_said_once_after_some_steps() -> None:
    alone = [walk(1, "0", "a", "b"), walk(2, "0", "c", "d")]
    assert WATCHED == 3
    *before, now, after = watched(*[alone] * 4)
    assert before == ["", ""] and after == ""
    assert now.startswith("no state recurred in 18 turns of 3 steps, so gigpo has nothing but first turns to compare")
    assert "Seen.state" in now and "gruppo env check" in now
    assert watched(*[alone] * 4, name="grpo") == [""] * 4


def test_a_state_that_recurs_or_a_world_of_one_turn_is_not_said() -> None:
    alone = [walk(1, "0", "a"), walk(2, "0", "b")]
    assert watched(alone, [walk(1, "0", "a"), walk(2, "0", "a")], alone, alone) == [""] * 4
    assert watched(*[[walk(1, "0"), walk(2, "0")]] * 4) == [""] * 4


def test_first_states_that_differ_are_the_cause() -> None:
    """The same task begins otherwise: it is not a pure function."""
    *_, now = watched(*[[walk(1, "x", "a"), walk(2, "y", "b")]] * 3)
    assert "Even the first states of one task differ" in now
