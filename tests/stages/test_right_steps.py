"""Rewards of steps: each step of an answer is paid if it is the right one at its place."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gruppo.cli import main
from gruppo.data import Episode, single_turn
from gruppo.methods import method
from gruppo.policies import CharTokenizer
from gruppo.stages import Ask, Context
from gruppo.stages.reward import RightSteps, add_components
from gruppo.stages.rollout import Group
from gruppo.tasks import Task, load_task
from gruppo.train.worlds import refuse_without_steps

WORDS = CharTokenizer()
CHAIN = Task("c", "sum 8 5 9:", "22", 1, "chain", meta={"steps": ["13", "22", "30"]})
LINES = Task("l", "57+68=", "125", 2, "addition", solution="7+8=15\n5+6+1=12\n125")


def said(task: Task, text: str, separator: str) -> Episode:
    """An answer as the rollout hands it on, in steps."""
    ids = np.append(WORDS.encode(text), WORDS.eos)
    e = single_turn(
        1, task.uid, "g", np.array([WORDS.bos]), ids, np.zeros(len(ids)), 0, text=text, reward={"task": 1.0}
    )
    e.ask = Ask(task, 1)
    ctx = Context(tokenizer=WORDS)

    async def play(prompts: Any) -> list[Episode]:
        return [e]

    ctx.play = play
    [made] = asyncio.run(Group(steps=separator)(ctx, []))
    return replace(made, ask=e.ask)


def paid(e: Episode, **fields: Any) -> list[float]:
    add_components(Context(tokenizer=WORDS), (RightSteps(**fields),), [e])
    return [t.reward["steps"] for t in e.turns]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("13 22 30", [1, 1, 1]),
        ("13 23 30", [1, 0, 1]),
        ("13 23 31", [1, 0, 0]),  # the others go on from the slip
        ("22 30", [0, 0]),  # at another place
        ("13 22 30 30", [1, 1, 1, 0]),
        ("30", [0]),
        ("", [0]),
    ],
)
def test_a_step_is_paid_at_its_place(text: str, wanted: list[int]) -> None:
    e = said(CHAIN, text, " ")
    assert paid(e, step_bonus=0.25) == [0.25 * w for w in wanted]
    assert e.total == 1.0 + 0.25 * sum(wanted) and e.score == 1.0


def test_lines_of_a_solution_are_steps() -> None:
    assert paid(said(LINES, "7+8=15\n5+6=11\n125", "\n"), step_bonus=2.0) == [2.0, 0.0, 2.0]
    assert paid(said(LINES, "125", "\n")) == [0.0]


@pytest.mark.parametrize(("name", "level"), [("chain", 4), ("longchain", 3)])
def test_right_answers_of_the_built_in_chains_are_paid_whole(name: str, level: int) -> None:
    task = load_task(name, level=level).train[0]
    wanted = [*map(str, np.cumsum(task.meta["numbers"])[1:])]
    assert paid(said(task, " ".join(wanted), " "), step_bonus=1.0) == [1.0] * len(wanted)


def test_a_task_without_steps_pays_none_and_is_refused_before_a_run() -> None:
    without = Task("k", "?", "1", 1, "k", solution="1")
    assert without.steps == () and paid(said(without, "1 2", " ")) == [0.0, 0.0]
    for name in ("knapsack", "addition", "chain", "longchain"):
        tasks, m = load_task(name), method("grpo").but(reward=RightSteps())
        if name == "knapsack":
            with pytest.raises(ValueError, match=r"right_steps in reward: task=knapsack has no steps.*Use task="):
                refuse_without_steps(m, tasks, name)
        else:
            refuse_without_steps(m, tasks, name)
        refuse_without_steps(method("grpo"), tasks, name)


def test_answers_of_one_turn_are_refused_before_the_first_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("steps=1", "prompts=2", "samples=2", "eval.prompts=2", "threads=1", "save.tensorboard=no", "task=chain")
    assert main(["train", *small, "method.reward+=right_steps"]) == 2
    assert "every answer of the first batch is one turn" in capsys.readouterr().err
    assert main(["train", *small, "method.reward+=right_steps", "method.rollout.steps= "]) == 0
