"""A run says that its world is another one when it is looked at again, and says nothing of worlds that are not."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import clocks
import lucky
import pytest
from drawing import finished
from tool_plays import context, played, starts_of

from gruppo.cli import overrides
from gruppo.envs.registry import BUILT_IN
from gruppo.tasks import load_task
from gruppo.train.config import RunConfig
from gruppo.train.loop import train_step
from gruppo.train.run import Run
from gruppo.train.worlds import unstable

SMALL = ("prompts=2", "samples=2", "threads=1", "sampling.max_tokens=3", "save.tensorboard=no")
SMALL += ("accept=dead_groups,mask",)


def warnings(*settings: str, steps: int = 1) -> list[str]:
    """What a run says about looking again, in its first steps."""
    said: list[str] = []
    run = Run(overrides.apply(RunConfig(), (*SMALL, *settings)), say=said.append)
    try:
        for step in range(steps):
            finished(train_step(run, step))
    finally:
        run.close()
    return [s for s in said if "looked at again" in s]


def own(world: str, folder: Path) -> str:
    path = folder / "levels.jsonl"
    path.write_text("\n".join(map(json.dumps, lucky.rows(f"{clocks.__file__}:{world}"))))
    return f"task={path}"


WRONG = {"State": "the state of turn 1 was", "First": "the first observation was", "Looks": "two looks at turn 0 show"}
WRONG |= {"Pays": "the reward was"}


@pytest.mark.parametrize("world", WRONG)
def test_a_clock_is_found_and_said_once(world: str, tmp_path: Path, one_thread: None) -> None:
    [said] = warnings(own(world, tmp_path), "model=tiny-random", steps=2)
    assert WRONG[world] in said and f"clocks.py:{world} is not the same" in said and "gruppo env check" in said


@pytest.mark.parametrize("how", [(), ("task.window=1",), ("method=ufo",), ("method=memact",), ("method=arpo_agentic",)])
def test_nothing_is_said_of_a_steady_world(how: tuple[str, ...], tmp_path: Path, one_thread: None) -> None:
    assert warnings(own("Steady", tmp_path), "model=tiny-random", *how) == []


def test_a_score_that_was_flipped_on_purpose_is_no_clock(one_thread: None) -> None:
    assert warnings("task=household", "model=tiny-agent", "regime.flip=1") == []


@pytest.mark.parametrize("world", BUILT_IN)
def test_nothing_is_said_of_built_in_worlds(world: str, one_thread: None) -> None:
    assert warnings(f"task={world}", "model=tiny-agent", "samples=2") == []


CLOCK = """
from pathlib import Path


def clock() -> str:
    \'\'\'Says something else each time.\'\'\'
    with Path("calls").open("a") as file:
        file.write(".")
    return Path("calls").read_text()
"""


def test_tools_are_not_called_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool may cost, act on things, or say something else each time."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(CLOCK)
    ctx, play = context([["clock", "2"]], tools="./mine.py:clock")
    drawn = played(ctx, play, starts_of(ctx, play, [load_task("addition", tools="./mine.py:clock").train[0]]))
    assert len(drawn[0].turns) == 2 and drawn[0].turns[0].tools
    drawn[0].reward = {"task": 0.0}
    run = SimpleNamespace(walk=SimpleNamespace(play=play))
    assert unstable(cast(Run, run), drawn) == ""
    assert Path("calls").read_text() == "."
