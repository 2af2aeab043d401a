"""Wrappers: turn limits, retries (ufo's worked numbers), windows, a memory that is edited, games against a player."""

from pathlib import Path

import pytest

from gruppo.envs import make_env
from gruppo.envs.answer import Answer
from gruppo.envs.base import Seen, need
from gruppo.envs.check import LAWS, holds
from gruppo.envs.memory import Memory
from gruppo.envs.wrappers import AGAIN, Against, Retry, TurnLimit, Window, Wrapper
from gruppo.tasks import Task, load_task

GUESS = Task(
    "g", "guess number from 1 to 9", "5", 1, "g", meta={"facts": {"low": 1, "high": 9, "secret": 5, "turns": 9}}
)
SUM = Task("s", "2+3=", "5", 1, "addition")


def summed() -> Answer:
    return Answer("gruppo.tasks.addition:score")


def total(seen: list[Seen]) -> float:
    return sum(r for s in seen for r in s.rewards.values())


WRAPPED = {
    "limit": lambda: TurnLimit(make_env("household"), 5),
    "retry": lambda: Retry(make_env("lake"), 3),
    "window": lambda: Window(make_env("household"), 2),
    "memory": lambda: Memory(make_env("household"), 60),
    "against": lambda: Against(make_env("tictactoe"), "careful", "nought"),
    "several": lambda: Window(TurnLimit(Retry(make_env("lake"), 2), 12), 1),
}


@pytest.mark.parametrize("law", [law for law in LAWS if law.name != "gold"], ids=lambda law: law.name)
@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapped_world_is_a_world(name: str, law) -> None:
    world = {"limit": "household", "window": "household", "memory": "household", "against": "tictactoe"}.get(
        name, "lake"
    )
    tasks = load_task(world).train
    assert not holds(law, WRAPPED[name], [tasks[i] for i in range(3)])


def test_a_turn_limit_ends_with_nothing_earned() -> None:
    env = TurnLimit(make_env("guess"), 2)
    env.reset(GUESS)
    assert not env.step("1").done
    last = env.step("2")
    assert last.done and last.truncated and last.rewards == {"task": 0.0}
    env.reset(GUESS)
    env.step("1")
    assert env.step("5").rewards == {"task": 1.0} and not env.seen.truncated  # won with the last turn
    game = TurnLimit(make_env("kuhn"), 1)
    game.reset(load_task("kuhn").train[0])
    assert game.step("check").outcomes == {"first": 0.0, "second": 0.0}
    with pytest.raises(ValueError, match="at least 1"):
        TurnLimit(make_env("guess"), 0)


@pytest.mark.parametrize(
    ("answers", "reward"),
    [
        (["5"], 1.0),  # right at once: no penalty
        (["3", "3", "5"], 0.25 - 0.5 * (1 - 2 / 3)),  # the card: .0833
        (["3"] * 5, -0.5 * (1 - 1 / 5)),  # the card: -.4
        (["3", "4", "6", "7", "8"], 0.0),
        (["3", " 3", "5"], 0.25 - 0.5 * (1 - 2 / 3)),  # spaces are no other answer
    ],
)
def test_retries_pay_what_the_card_of_ufo_says(answers: list[str], reward: float) -> None:
    env = Retry(summed())
    env.reset(SUM)
    seen = [env.step(a) for a in answers]
    assert total(seen) == pytest.approx(reward) and seen[-1].done
    assert all(s.text == f"{AGAIN} {SUM.prompt}" and not s.rewards for s in seen[:-1])


def test_an_empty_answer_is_no_try() -> None:
    env = Retry(summed(), tries=2)
    env.reset(SUM)
    assert not env.step("").valid and env.failed == 0
    assert env.step("5").rewards == {"task": 1.0, "repeated": 0.0}


def test_a_window_shows_the_last_turns_and_nothing_else() -> None:
    env = Window(make_env("guess"), 1)
    assert env.reset(GUESS).text == "guess number from 1 to 9\nguess from 1 to 9"
    assert env.step("2").text == "guess number from 1 to 9\nguess from 1 to 9\n> 2\nhigher than 2"
    seen = env.step("8")
    assert seen.text == "guess number from 1 to 9\nhigher than 2\n> 8\nlower than 8" and seen.fresh
    assert Window(make_env("guess"), 0).reset(GUESS).fresh
    with pytest.raises(ValueError, match="one seat what another"):
        Window(make_env("kuhn"), 2)


def test_an_edit_rewrites_the_context_and_keeps_the_task() -> None:
    env = Memory(make_env("guess"))
    assert env.reset(GUESS).text == "1 : guess from 1 to 9"
    assert env.step("2").text == "2 : higher than 2" and not env.seen.fresh
    env.step("8")
    edited = env.step("drop 1 2 note more than 2")
    assert edited.fresh and edited.valid and edited.state == "3 7"
    assert edited.text == "guess number from 1 to 9\n1 : more than 2\n3 : lower than 8"
    assert env.step("5").rewards == {"task": 1.0}


@pytest.mark.parametrize("action", ["drop", "drop 7", "drop 0", "drop x", "drop note x", "drop 2"])
def test_an_edit_of_what_is_not_there_is_invalid_and_changes_nothing(action: str) -> None:
    env = Memory(make_env("guess"))  # 0 is the task, 2 the newest
    env.reset(GUESS)
    env.step("2")
    before = env.records
    seen = env.step(action)
    assert not seen.valid and seen.text == "nothing happens" and env.records == before


def test_a_memory_that_overflows_costs_a_tenth_and_edits_prevent_it() -> None:
    env = Memory(make_env("guess"), words=24)
    env.reset(GUESS)
    seen = [env.step("1"), env.step("2")]
    assert seen[-1].truncated and seen[-1].rewards == {"task": 0.0, "overflow": -0.1}
    env.reset(GUESS)
    env.step("1")
    env.step("drop 1")
    assert not env.step("2").done
    assert not Memory(make_env("guess"), edits=False).edits


def test_without_the_tool_an_edit_is_an_action_like_any_other() -> None:
    env = Memory(make_env("guess"), edits=False)
    env.reset(GUESS)
    assert not env.step("drop 1").valid and env.turn == 1


def test_against_a_player_a_game_is_a_world_with_one_seat() -> None:
    task = Task("k", "", "", 1, "k", meta={"facts": {"cards": [2, 0], "turns": 8}})
    env = Against(make_env("kuhn"), "bold")
    assert env.reset(task).agent == "policy" and env.seats == ("policy",)
    assert env.step("bet").rewards == {"task": 2.0}  # it calls with a jack
    env = Against(make_env("kuhn"), "bold", "second")
    assert env.reset(task).text == "you hold jack they bet"
    assert env.step("fold").rewards == {"task": -1.0}
    with pytest.raises(ValueError, match="Did you mean 'second'"):
        Against(make_env("kuhn"), "bold", "secnd")
    with pytest.raises(ValueError, match="Did you mean 'bold'"):
        Against(make_env("kuhn"), "bald")


def test_snapshots_asked_of_a_world_that_has_none_are_refused() -> None:
    class Bare:
        def reset(self, task: Task) -> Seen:
            return Seen("x")

        def step(self, action: str) -> Seen:
            return Seen("x", done=True, rewards={"task": 0.0})

    with pytest.raises(ValueError, match=r"Bare has no snapshot, and trees branch.*Replayed"):
        need(Bare(), "snapshot", "trees branch from it")
    assert Wrapper(Bare()).can == frozenset()
    bare = Wrapper(Bare())
    bare.reset(Task("t", "", "", 1, "t"))
    with pytest.raises(ValueError, match=r"Bare has no snapshot.*Replayed"):
        bare.snapshot()


def test_a_world_by_name_without_snapshots_says_so(tmp_path: Path) -> None:
    path = tmp_path / "bare_world.py"
    path.write_text("class Bare:\n    def reset(self, task): ...\n    def step(self, action): ...\n")
    for call in (lambda e: e.snapshot(), lambda e: e.restore(None)):
        with pytest.raises(
            ValueError, match=r"Bare has no snapshot.*It offers nothing beyond reset and step.*Replayed"
        ):
            call(make_env(f"{path}:Bare"))
