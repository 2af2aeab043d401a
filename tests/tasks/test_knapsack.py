"""Knapsacks: every packing is found, worth its share of the target, and counted once however it is written."""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.tasks import load_task
from gruppo.tasks.answers import answer
from gruppo.tasks.knapsack import SHAPE, count, make, packings, problems, score, score_best


def by_hand(numbers: tuple[int, ...], target: int) -> set[tuple[int, ...]]:
    every = (c for n in range(1, len(numbers) + 1) for c in combinations(sorted(numbers, reverse=True), n))
    return {c for c in every if sum(c) == target}


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 40))
def test_all_packings_are_those_of_all_subsets(numbers: list[int], target: int) -> None:
    found = packings(tuple(sorted(numbers)), target)
    assert len(set(found)) == len(found) and set(found) == by_hand(tuple(numbers), target)


@pytest.mark.parametrize(("level", "size", "fewest"), [(1, 5, 2), (2, 6, 3), (3, 8, 6)])
def test_every_problem_has_many_best_packings(level: int, size: int, fewest: int) -> None:
    assert SHAPE[level] == (size, fewest) and len(set(problems(level))) == count(level) > 4000
    for task in load_task(f"mix:knapsack@{level}", train_size=100).train:
        numbers = tuple(task.meta["numbers"])
        target, shown = task.prompt.removesuffix(":").split(" from ")
        assert sorted(map(int, shown.split())) == sorted(numbers) and len(numbers) == size and max(numbers) <= 9
        assert task.meta["best"] == len(by_hand(numbers, int(target))) >= fewest
        assert score(task, task.answer) == score_best(task, task.answer) == 1.0
        assert all(task.answer.startswith(hint) and score(task, hint) < 1 for hint in task.hints)


def test_no_problem_is_left_out() -> None:
    """Of the numbers of one problem all targets with two best packings or more are there."""
    numbers = problems(1)[0][0]
    targets = {target for other, target in problems(1) if other == numbers}
    assert targets == {t for t in range(1, sum(numbers) + 1) if len(by_hand(numbers, t)) >= 2}


def test_a_packing_is_worth_its_share() -> None:
    task = make(1, 0, 0)
    task.meta.update(numbers=[9, 6, 5, 3, 2], target=14)
    worth = {"9+5": 1, "5+9": 1, " 9 + 5 ": 1, "9+3+2": 1, "9+3": 12 / 14, "2": 2 / 14, "9+6": 0, "9+6+5+3+2": 0}
    none = {"5+5": 0, "14": 0, "9+5=14": 0, "9-5": 0, "9+": 0, "+9": 0, "": 0, "09+5": 0, "٩+5": 0, "9+5\n9+5": 0}
    for text, value in (worth | none).items():
        assert score(task, text) == value and score_best(task, text) == (value == 1), text
    assert score(task, "+".join(["1"] * 200)) == 0.0


def test_the_order_of_a_packing_does_not_count() -> None:
    task = make(1, 0, 0)
    task.meta.update(numbers=[9, 6, 5, 3, 2], target=14)
    said = [answer(score, task, text) for text in ("5+9", "9+5", "2+9+3", "9+9", "no")]
    assert said == ["9+5", "9+5", "9+3+2", "", ""]


def test_the_seed_chooses_among_the_best() -> None:
    rank = next(r for r in range(count(3)) if make(3, r, 0).meta["best"] >= 6)
    answers = Counter(make(3, rank, pick).answer for pick in range(60))
    assert len(answers) == make(3, rank, 0).meta["best"]
