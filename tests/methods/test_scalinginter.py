"""Evidence for scalinginter: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import evidence
import pytest
from looking_back import tasks_of

from gruppo.cli import overrides
from gruppo.data import Episode
from gruppo.envs import make_env
from gruppo.envs.wrappers import TurnLimit
from gruppo.methods import method
from gruppo.methods.scalinginter import Horizon
from gruppo.stages import Ask, Context, Schedule
from gruppo.stages.curriculum import Uniform
from gruppo.stages.play import ask_of, asked_of
from gruppo.tasks import load_task
from gruppo.train.config import RunConfig

test_laws = evidence.laws("scalinginter")
test_asks = evidence.asks("scalinginter")
test_planted_mistakes = evidence.planted("scalinginter")
test_equivalences = evidence.equivalences("scalinginter")
test_resume = evidence.resume("scalinginter")

TASKS = tasks_of(a=7)


def asks(step: int, horizon: Horizon | None = None) -> list[Ask]:
    return (horizon or method("scalinginter").curriculum)(Context(step=step, prompts=3, samples=4), TASKS)


def limit(step: int, horizon: Horizon | None = None) -> int:
    [turns] = {ask.how["turns"] for ask in asks(step, horizon)}
    return turns


def test_scalinginter_card() -> None:
    """Card S102: step 99 has 10 turns, 100 has 20, 250 and 999 have 30."""
    assert [limit(step) for step in (0, 99, 100, 199, 200, 250, 999)] == [10, 10, 20, 20, 30, 30, 30]
    babyai = Horizon(Schedule("steps({0: 6, 100: 13, 200: 20})"))
    assert [limit(step, babyai) for step in (0, 100, 200)] == [6, 13, 20]


def test_scalinginter_of_another_schedule_is_rounded_down() -> None:
    rising = Horizon(Schedule("linear(4, 30, steps=100)"))
    assert [limit(step, rising) for step in (0, 10, 50, 100, 500)] == [4, 6, 17, 30, 30]
    assert limit(77, Horizon(5)) == 5 and type(limit(77, Horizon(5.0))) is int


def test_scalinginter_asks_for_the_same_tasks_as_uniform() -> None:
    for step in (0, 1, 150):
        mine, plain = asks(step), Uniform()(Context(step=step, prompts=3, samples=4), TASKS)
        assert [(a.task, a.samples, a.group, a.index) for a in mine] == [
            (a.task, a.samples, a.group, a.index) for a in plain
        ]


def test_scalinginter_limits_the_turns_of_a_world() -> None:
    """The number of an ask is what `TurnLimit` takes, and an episode without its goal ends there."""
    tasks = load_task("lake", level=1)
    env = TurnLimit(make_env("lake"), limit(0, Horizon(3)))
    seen, turns = env.reset(tasks.train[0]), 0
    while not seen.done:
        seen, turns = env.step("nonsense"), turns + 1
    assert turns == 3 and seen.truncated and seen.rewards["task"] == 0.0


def test_scalinginter_an_ask_comes_back_from_a_file() -> None:
    [ask, *_] = asks(120)
    stored = Episode(1, ask.task.uid, ask.group, [], [], asked=asked_of(ask), index=ask.index)
    assert ask_of(stored, ask.task) == ask


def test_scalinginter_refuses_what_is_no_horizon() -> None:
    for bad in ("0", "linear(0, 10, steps=5)"):
        with pytest.raises(ValueError, match="turns"):
            overrides.apply(RunConfig(), ("method=scalinginter", f"method.curriculum.turns={bad}"))
    told = overrides.apply(RunConfig(), ("method=scalinginter", "method.curriculum.turns=linear(2, 9, steps=7)"))
    assert limit(7, told.method.curriculum) == 9
