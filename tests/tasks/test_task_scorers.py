"""Scorers: right, wrong and malformed answers of every task; worked solutions; the writers of mixed care."""

import importlib
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppo.tasks import BUILT_IN, Task, addition, chain, countdown, family, load_task, sorting
from gruppo.tasks.writers import CARE, write

CELLS = [(name, level) for name in BUILT_IN for level in family(name).levels]
FIRST = {name: load_task(name).train[0] for name in BUILT_IN}


def scorer(name: str):
    return importlib.import_module(f"gruppo.tasks.{name}").score


def sum_task(a: int, b: int) -> Task:
    return Task("t", f"{a}+{b}=", str(a + b), 2, "addition", meta={"a": a, "b": b})


def make(target: int, *numbers: int) -> Task:
    return Task("t", "", "", 1, "countdown", meta={"numbers": list(numbers), "target": target})


@pytest.mark.parametrize(("name", "level"), CELLS)
def test_own_answers_score_one_and_solutions_end_in_them(name: str, level: int) -> None:
    for task in load_task(name, level=level).train[:150]:
        assert scorer(name)(task, task.answer) == 1.0
        *steps, last = task.solution.split("\n")
        assert last == task.answer
        assert steps


@pytest.mark.parametrize(("name", "level"), CELLS)
@pytest.mark.parametrize(
    "text", ["", " ", "\n", "abc", "=", "()", "1e3", "-1", "nan", "9" * 5000, "(" * 3000, "\u0661"]
)
def test_malformed_answers_score_zero_and_never_raise(name: str, level: int, text: str) -> None:
    task = load_task(name, level=level).train[3]
    assert scorer(name)(task, text) == 0.0


@settings(deadline=None)
@given(st.sampled_from(BUILT_IN), st.text(max_size=30))
def test_no_text_makes_a_scorer_raise(name: str, text: str) -> None:
    assert scorer(name)(FIRST[name], text) in (0.0, 1.0)


@settings(deadline=None)
@given(st.text("0123456789+-*/() ", max_size=24))
def test_countdown_agrees_with_python_on_every_expression(text: str) -> None:
    found = countdown.tokens(text)
    assert found is not None
    value = countdown.evaluate(found)
    assert value == _reference(text, found)


def _reference(text: str, found: list[str]) -> Fraction | None:
    """Python's own parser, with what our grammar does not have taken out: signs, powers, calls, `//`."""
    joined = " ".join(found)
    unary = any(t in "+-" and (i == 0 or found[i - 1] in "+-*/(") for i, t in enumerate(found))
    if unary or not found or "* *" in joined or "/ /" in joined:
        return None
    try:
        value = eval(" ".join(f"F({int(t)})" if t.isdecimal() else t for t in found), {"F": Fraction})
    except (SyntaxError, TypeError, ZeroDivisionError):
        return None
    return value if isinstance(value, Fraction) else None  # Python has ()


def test_addition() -> None:
    task = sum_task(57, 68)
    assert [addition.score(task, t) for t in ("125", " 125 ", "125.", "0125", "115", "125 125")] == [
        1,
        1,
        0,
        0,
        0,
        0,
    ]


def test_sorting() -> None:
    task = Task("t", "", "12 30 30 77", 1, "sorting")
    assert [sorting.score(task, t) for t in ("12 30 30 77", "12  30 30 77 ", "12 30 77 30", "12 30 77")] == [
        1,
        1,
        0,
        0,
    ]
    assert sorting.score_places(task, "12 30 77 30") == 0.5
    assert sorting.score_places(task, "12 30 30 77") == 1
    assert sorting.score_places(task, "12 30 30 77 80") == 0.8
    assert sorting.score_places(task, "") == 0


def test_chain_counts_the_last_number_only() -> None:
    task = Task("t", "sum 8 5 9 4:", "26", 1, "chain")
    assert [chain.score(task, t) for t in ("26", "13 22 26", "99 26", "26 1", "13 22 27", "226")] == [
        1,
        1,
        1,
        0,
        0,
        0,
    ]


@pytest.mark.parametrize("text", ["3+5+8", "8+5+3", "(5-3)*8", "8*(5-3)", " ( 5 - 3 ) * 8 ", "((5-3))*(8)"])
def test_countdown_has_many_right_answers(text: str) -> None:
    assert countdown.score(make(16, 3, 5, 8), text) == 1


@pytest.mark.parametrize(
    "text",
    [
        "8+8",
        "16",
        "3+5",
        "3+5+8+0",
        "3+3+5+8-3",
        "35-8",
        "-3+5+8",
        "3+5+8=16",
        "3++5+8",
        "(3+5+8",
        "3+5)+8",
        "5 3 8",
    ],
)
def test_countdown_uses_each_number_exactly_once(text: str) -> None:
    assert countdown.score(make(16, 3, 5, 8), text) == 0


def test_countdown_divides_exactly() -> None:
    assert countdown.score(make(24, 8, 3, 8, 3), "8/(3-8/3)") == 1
    assert countdown.score(make(2, 4, 2), "4/2") == 1
    assert countdown.score(make(1, 5, 5, 1), "1/(5-5)") == 0
    assert countdown.score(make(0, 3, 2), "3/2") == 0


def test_countdown_answers_are_all_right_and_different() -> None:
    right = countdown.answers((3, 5, 8), 16)
    assert {"3+5+8", "8*(5-3)", "(5-3)*8"} <= set(right)
    assert len(set(right)) == len(right)
    for level in (1, 2, 3):
        for task in load_task("countdown", level=level).train[:40]:
            every = countdown.answers(tuple(sorted(task.meta["numbers"])), task.meta["target"])
            assert all(countdown.score(task, text) == 1 for text in every)


def test_countdown_solution_goes_step_by_step() -> None:
    assert countdown._steps("(5-3)*8") == ["5-3=2", "2*8=16"]


def test_solutions_read_as_at_school() -> None:
    assert addition.make(2, 0, 1).solution == "0+0=0\n1+1=2\n20"
    assert addition._solution(57, 68) == "7+8=15\n5+6+1=12\n125"


# ---- writers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "level"), CELLS)
def test_writers_are_right_as_often_as_their_care_says(name: str, level: int) -> None:
    draw, care, tasks = Random(1), CARE[name][level], load_task(name, level=level)
    texts = [(t, write(t, care, draw)) for t in tasks.train[:40] for _ in range(25)]
    right = sum(scorer(name)(t, x) for t, x in texts) / len(texts)
    assert abs(right - care) < 0.06
    assert all(len(x) + 1 <= tasks.max_tokens for _, x in texts)


@pytest.mark.parametrize(("name", "level"), CELLS)
@pytest.mark.parametrize("care", [0.0, 1.0])
def test_careful_writers_are_always_right_and_careless_never(name: str, level: int, care: float) -> None:
    draw = Random(2)
    for task in load_task(name, level=level).train[:60]:
        assert scorer(name)(task, write(task, care, draw)) == care


def test_writers_who_write_steps_are_right_more_often() -> None:
    draw, found = Random(3), {True: [], False: []}
    for task in load_task("chain").train[:500]:
        text = write(task, 0.4, draw)
        found[" " in text].append(chain.score(task, text))
    with_steps, without = (sum(v) / len(v) for v in (found[True], found[False]))
    assert with_steps > 0.5 > 0.3 > without
