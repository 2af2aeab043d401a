"""Worked solutions and hints: every family's solution is right by its own scorer, and so can be what a hint begins."""

import pytest

from gruppo.tasks import NAMES, Task, family, load_object, load_task
from gruppo.tasks.base import answer_in

CELLS = [(name, level) for name in NAMES for level in family(name).levels]


def rights(task: Task) -> list[str]:
    """Right answers of different forms."""
    out = [task.solution, task.answer, " ".join(map(str, task.meta.get("totals", ())))]
    return [*out, f"{task.meta['a']} + {task.meta['b']} = {task.answer}"] if task.source == "sums" else out


@pytest.mark.parametrize(("name", "level"), CELLS)
def test_a_solution_scores_one(name: str, level: int) -> None:
    tasks = load_task(name, level=level)
    score = load_object(str(tasks.scorer))
    for task in (*tasks.train[:100], *tasks.held_out[:20]):
        assert score(task, task.solution) == 1.0, task
        *steps, _ = task.solution.split("\n")
        wrong = "\n".join([*steps, "x"])
        assert score(task, wrong) < 1.0, "steps alone are no answer"


@pytest.mark.parametrize(("name", "level"), CELLS)
def test_hints_grow_and_begin_a_right_answer(name: str, level: int) -> None:
    tasks = load_task(name, level=level)
    score = load_object(str(tasks.scorer))
    for task in tasks.train[:60]:
        for shorter, longer in zip(task.hints, task.hints[1:], strict=False):
            assert longer.startswith(shorter) and len(longer) > len(shorter)
        for hint in task.hints:
            assert hint and any(text.startswith(hint) and score(task, text) == 1.0 for text in rights(task)), hint
            assert hint not in rights(task), "a hint never says all"
    assert any(t.hints for t in tasks.train[:60])


def test_hints_of_one_problem_each() -> None:
    assert family("addition").make(2, 0, 1).hints == ("2",)  # 10+10=20
    wanted = {"sorting": "17 31 52", "chain": "13 22 26"}
    task = Task("s", "sort 52 17 31:", wanted["sorting"], 1, "sorting", meta={"hints": ["17", "17 31"]})
    assert task.hints == ("17", "17 31")
    chain = next(t for t in load_task("chain", level=1).train if t.meta["totals"][0] >= 10)
    assert chain.hints == (str(chain.meta["totals"][0]),)
    down = next(t for t in load_task("countdown", level=1).train if t.answer.count("+") == 1)
    a, b = down.answer.split("+")
    assert down.hints == (a, f"{a}+") and b


def test_hints_of_a_solution() -> None:
    def hints(solution: str, **meta: object) -> tuple[str, ...]:
        return Task("t", "q", "3", 1, "own", solution, meta=dict(meta)).hints

    assert hints("1+1=2\n2+1=3\n3") == ("1+1=2\n", "1+1=2\n2+1=3\n")
    assert hints("so it is 3") == ("so", "so it", "so it is")
    assert hints("3") == hints("") == ()
    assert hints("3", hints=["Think of 1+1.", "1+1=2"]) == ("Think of 1+1.", "1+1=2")
    for wrong in ("Think", [1, 2]):
        with pytest.raises(ValueError, match=r"task 't': meta\['hints'\].*Give a list of texts"):
            hints("3", hints=wrong)


def test_only_steps_of_the_solution_may_stand_before_an_answer() -> None:
    task = load_task("addition").train[0]
    first, *_, last = task.solution.split("\n")
    assert answer_in(task, f"{first}\n{last}") == last
    assert answer_in(task, f" {first} \n\t{last}\n").strip() == last
    for text in (f"guess\n{last}", f"{last}\n{last}", f"{first}{last}", "", last, f"{first}\n\n{last}"):
        assert answer_in(task, text) == text
