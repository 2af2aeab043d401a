"""What a text answers, which answers mean the same, and the judge that asks the scorer for it."""

import asyncio
import time
from pathlib import Path

import pytest

from gruppo.tasks import Task, load_task
from gruppo.tasks.answers import answer, answers, merged
from gruppo.tasks.base import Scorer
from gruppo.tasks.imports import load_object
from gruppo.tasks.judge import Judge
from gruppo.tasks.scorers import Exact, JsonSchema, Numeric, Regex

TASK = Task("t", "?", "7", 1, "test", "3 and 4\n7")


def of(scorer: object, text: str) -> str:
    return answer(scorer, TASK, text)


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("addition:score", " 12 \n", "12"),
        ("addition:score", "3 and 4\n12", "12"),  # a step of the solution before it
        ("addition:score", "because\n12", "because 12"),  # no step: the scorer reads the whole text
        ("chain:score", "13 22 26", "26"),
        ("countdown:score", "( 5 - 3 ) * 8", "(5-3)*8"),
        ("sorting:score", "1  2 3", "1 2 3"),
        ("sums:score", "3 + 4 is 7.", "7"),
        ("chain:score", "", ""),
        ("sums:score", "no number", ""),
    ],
)
def test_built_in_tasks(path: str, text: str, said: str) -> None:
    assert of(load_object(f"gruppo.tasks.{path}"), text) == said


def test_named_scorers() -> None:
    assert of(Exact(ignore_case=True), "<answer>Big  Red</answer>") == "big red"
    assert of(Numeric(), "so it is 1,000") == of(Numeric(), "1e3") == "1000" and of(Numeric(), "0.5") == "1/2"
    assert of(Numeric(), "nothing") == "" and of(Exact(extract="boxed"), "nothing") == ""
    assert of(Regex(pattern="Answer: (?P<answer>.+)"), "Answer: 3\nAnswer: 4") == "4"
    assert of(Regex(pattern="Answer: (?P<answer>.+)"), "4") == "" and of(Regex(pattern="[0-9]"), "a\n4") == "4"
    assert of(JsonSchema(schema='{"type": "number"}'), "<answer>4</answer>") == "4"


def test_other_scorers_find_the_answer_by_its_form() -> None:
    assert of(lambda task, text: 1.0, "so\n#### 42\n") == "42" and of(lambda task, text: 1.0, "a\n b  c \n") == "b c"


def test_formulas_that_are_the_same() -> None:
    pytest.importorskip("math_verify")
    from gruppo.tasks.scorers import Math

    texts = ["\\boxed{1/2}", "so $0.5$", "\\boxed{\\frac{2}{4}}", "\\boxed{x+1}", "no idea", "\\boxed{1 + x}"]
    got = answers(Math(), [(TASK, t) for t in texts])
    assert got[0] == got[1] == got[2] != "" and got[3] == got[5] not in ("", got[0]) and got[4] == ""
    assert answers(Math(), [(TASK, t) for t in reversed(texts)]) == got[::-1]


def test_classes_do_not_mind_the_order_and_nothing_joins_nothing() -> None:
    def near(a: str, b: str) -> bool:
        if "x" in (a, b):
            raise ZeroDivisionError
        return abs(int(a) - int(b)) <= 1

    assert merged(["2", "1", "", "9", "x", "2", "10"], near) == ["1", "1", "", "9", "x", "1", "9"]
    assert merged(["10", "2", "x", "9", "", "1"], near) == ["9", "1", "x", "9", "", "1"]
    assert merged(["1", "2", "3"], near) == ["1", "1", "3"], "not transitive: cut at the first of the class"


# through the judge's process


def scorer(folder: Path, text: str) -> str:
    (folder / "mine.py").write_text(text)
    return f"{folder / 'mine.py'}:Mine"


def test_the_judge_asks_the_scorer(tmp_path: Path) -> None:
    path = scorer(
        tmp_path,
        "class Mine:\n"
        "    def __call__(self, task, text): return float(text == task.answer)\n"
        "    def answer(self, task, text): return text.split('=')[-1]\n"
        "    def same(self, a, b): return a.lower() == b.lower()\n",
    )
    with Judge(path) as judge:
        groups = [[(TASK, "a=B"), (TASK, "b"), (TASK, ""), (TASK, "c")], [(TASK, "C")]]
        assert asyncio.run(judge.answers(groups)) == [["B", "B", "", "c"], ["C"]], "alike inside a group only"
        assert [v.components["task"] for v in asyncio.run(judge.score([(TASK, "7"), (TASK, "8")]))] == [1, 0]
        assert asyncio.run(judge.answers([])) == []


def test_answers_and_verdicts_are_asked_in_turns_of_one_worker() -> None:
    tasks = load_task("chain", level=1)
    with Judge(tasks.scorer) as judge:
        task = tasks.train[0]
        assert asyncio.run(judge.answers([[(task, "1 2 3"), (task, "3")]])) == [["3", "3"]] and judge.restarts == 0


def test_a_function_with_arguments_keeps_its_answer() -> None:
    task = load_task("chain", level=1).train[0]
    with Judge(Scorer("gruppo.tasks.claims:scaled", {"weight": 0.1})) as judge:
        assert asyncio.run(judge.answers([[(task, "1 2 3"), (task, "3")]])) == [["3", "3"]], (
            "that of the task it is made from"
        )


def test_a_scorer_that_hangs_or_raises_leaves_texts(tmp_path: Path) -> None:
    path = scorer(
        tmp_path,
        "import time\n"
        "class Mine:\n"
        "    def __call__(self, task, text): return 1.0\n"
        "    def answer(self, task, text):\n"
        "        if text == 'hang': time.sleep(60)\n"
        "        if text == 'raise': raise ValueError('no')\n"
        "        return 'x'\n",
    )
    start = time.monotonic()
    with Judge(path, seconds=1.0) as judge:
        groups = [[(TASK, "1")], [(TASK, "hang"), (TASK, "2")], [(TASK, "raise"), (TASK, "3")], [(TASK, "4")]]
        assert asyncio.run(judge.answers(groups)) == [["x"], ["hang", "2"], ["raise", "3"], ["x"]]
        assert judge.restarts == 1
    assert time.monotonic() - start < 50  # it would sleep for 60
