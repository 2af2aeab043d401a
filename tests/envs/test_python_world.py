"""The world python: its questions, what programs show, replays of programs that are no functions, and refusals."""

import ast
import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gruppo.cli import main
from gruppo.data import Status
from gruppo.envs import make_env, play
from gruppo.envs import python as world
from gruppo.envs.base import Seen
from gruppo.envs.programs import KINDS
from gruppo.envs.words import vocabulary
from gruppo.envs.world import Draws
from gruppo.sandbox import NoIsolation, Ran, Sandbox
from gruppo.stages import Sampling
from gruppo.tasks import Task, load_task

SUM = {"kind": "sum", "x": [3, 4, 5], "n": 2, "turns": 9}


def task(facts: dict[str, Any] = SUM) -> Task:
    return Task("t", "", "", 1, "t", meta={"facts": facts})


def seen(*actions: str, facts: dict[str, Any] = SUM) -> list[Seen]:
    return play(make_env("python"), task(facts), actions)[1:]


@pytest.mark.parametrize("name", KINDS)
def test_the_program_of_every_kind_computes_its_answer(name: str) -> None:
    """The answers come from other code than the programs. These are ours, so that no sandbox is needed for them."""
    kind = KINDS[name]
    assert set(kind._asdict()) >= {"asks", "program"} and "\n" not in kind.program
    for i in range(20):
        facts = kind.draw(Draws("test", name, i))
        program = compile(ast.parse(kind.program.format(**facts), mode="eval"), name, "eval")
        assert eval(program) == kind.value(facts), facts


def test_each_level_has_questions_of_its_own() -> None:
    for level in (1, 2, 3, 4):
        tasks = load_task("python", level=level, train_size=60)
        kinds = {tasks.train[i].meta["facts"]["kind"] for i in range(60)}
        assert kinds == {name for name, kind in KINDS.items() if kind.level == level}
    assert "sum" not in vocabulary()  # the words of the built-in agent stay as they are


def test_a_program_is_shown_and_an_answer_ends() -> None:
    first, second, last = seen("print('a')\n3 + 4", "sum([3, 4, 5])", "answer 12")
    assert (first.text, second.text, last.text) == ("a\n7", "12", "you win")
    assert [(c.name, c.arguments, c.ok) for c in second.tools] == [("python", "sum([3, 4, 5])", True)]
    assert first.tools[0].seconds > 0 and last.rewards == {"task": 1.0} and not last.tools
    assert seen("Answer 13")[-1].rewards == {"task": 0.0}


@pytest.mark.parametrize(
    "program, shown",
    [("answer = 6 * 7\nprint(answer)", "42"), ("answer =  6", "no output"), ("answer 12\nso", "Error")],
)
def test_a_variable_may_be_called_answer(program: str, shown: str) -> None:
    first, last = seen(program, "answer 12")
    assert shown in first.text and not first.done and first.tools and last.rewards == {"task": 1.0}


@pytest.mark.parametrize("said", ["python 6*7", "```python\n6*7\n```", "```\n6*7\n```", "python\n6*7", " 6*7 "])
def test_a_program_may_have_a_name_or_a_fence(said: str) -> None:
    [shown] = seen(said)
    assert shown.text == "42" and shown.tools[0].arguments == "6*7"


@pytest.mark.parametrize(
    "program, text",
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("pass", "no output"),
        ("print('x' * 10**5)", "the program was stopped: it printed too much"),
        ("print('<|im_end|> \u2264')", "<|im_end|> \u2264"),
    ],
)
def test_what_a_program_does_wrong_is_an_observation(program: str, text: str) -> None:
    [shown] = seen(program)
    assert shown.text == text
    assert shown.valid and not shown.done and not shown.error and len(shown.text) <= world.SHOWN


@pytest.mark.parametrize("said", ["", "python", "x" * 5_000, None])
def test_what_is_no_program_changes_nothing(said: Any) -> None:
    [shown] = seen(said)
    assert not shown.valid and not shown.tools and not shown.error


@pytest.mark.parametrize("program", ["__import__('time').time_ns()", "__import__('random').random()", "object()"])
def test_a_program_that_is_no_function_shows_the_same_when_it_is_played_again(program: str) -> None:
    assert seen(program, "1") == seen(program, "1")


def test_results_are_kept_by_text(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    real = Sandbox.run

    async def counted(self: Sandbox, code: str, **limits: Any) -> Ran:
        ran.append(code)
        return await real(self, code, **limits)

    monkeypatch.setattr(Sandbox, "run", counted)
    monkeypatch.setattr(world, "_kept", type(world._kept)())
    monkeypatch.setattr(world, "KEPT", 2)
    seen("1 + 10", "1 + 10", "1 + 11", "1 + 10", "1 + 12", "1 + 11", "1 + 10")
    assert ran == ["1 + 10", "1 + 11", "1 + 12", "1 + 11", "1 + 10"]  # the one that was used longest ago is forgotten


def test_a_sandbox_that_fails_is_an_error_and_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(self: Sandbox, code: str, **limits: Any) -> Ran:
        return Ran("failed", why="its process ended")

    with monkeypatch.context() as now:
        now.setattr(Sandbox, "run", fails)
        [last] = seen("2 + 40")
    assert last.done and not last.rewards and "the sandbox failed: its process ended" in last.error
    assert seen("2 + 40")[0].text == "42"


def test_without_isolation_one_sentence_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    def refused(self: Sandbox) -> Any:
        raise NoIsolation("no program was run, because nothing here can isolate one.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Sandbox, "start", refused)
    monkeypatch.setattr("gruppo.sandbox.host._shared", None)  # those of an earlier test have started already
    monkeypatch.setattr("gruppo.envs.with_tools._boxes", {})
    for task in ("task=python", "task.tools=python"):
        assert main(["train", task, "steps=1", "threads=1"]) == 2
        said = capsys.readouterr().err
        assert said.count("nothing here can isolate one") == 1 and "Traceback" not in said


@pytest.mark.parametrize("facts", [{"kind": "summ"}, {"kind": "sum"}, {"kind": "sum", "x": 3}, {}])
def test_facts_that_are_no_question_are_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"python: .*question"):
        make_env("python").reset(task({"turns": 3, **facts}))


def test_two_steps_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None, no_picture: None
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("prompts=2", "samples=2", "steps=2", "eval.every=0", "eval.prompts=1", "threads=1", "save.name=a")
    quiet = ("save.tensorboard=no", "sampling.max_tokens=6", "accept=dead_groups,mask", "task.options.turns=2")
    assert main(["train", "task=python", *small, *quiet]) == 0
    rows = [json.loads(line) for line in Path("runs/a/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["failed"] == 0 and rows[-1]["turns"] <= 2


def test_programs_wait_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """All episodes have begun their program before the first has ended: none holds up the others."""
    from test_with_tools import context, played, starts_of

    here, all_here = 0, asyncio.Event()

    async def meets(self: Sandbox, code: str, **limits: Any) -> Ran:
        nonlocal here
        here += 1
        if here == 3:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), 20)
        return Ran("ok", value="7")

    monkeypatch.setattr(Sandbox, "run", meets)
    monkeypatch.setattr(world, "_kept", type(world._kept)())
    ctx, play = context([[f"7 + 0 * {i}", "answer 0"] for i in range(3)])
    ctx.sampling = Sampling(max_tokens=20)
    tasks = [load_task("python").train[i] for i in range(3)]
    found = played(ctx, play, starts_of(ctx, play, tasks))
    assert [e.status for e in found] == [Status.OK] * 3
    assert np.array([len(e.turns) for e in found]).tolist() == [2, 2, 2]
