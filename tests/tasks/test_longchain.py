"""Long sums: running totals, lengths with a heavy tail, and a slip that decides."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.tasks import Task, load_task
from gruppo.tasks.answers import answer
from gruppo.tasks.longchain import FAMILY, LENGTHS, SLOTS, make, score

ranks = st.integers(0, 5_000)


def numbers(task: Task) -> list[int]:
    """From the prompt alone."""
    return [*map(int, task.prompt.removeprefix("sum ").removesuffix(":").split())]


@given(st.sampled_from([1, 2, 3]), ranks, st.integers(0, 2**60))
def test_the_answer_is_the_running_totals(level: int, rank: int, pick: int) -> None:
    task = make(level, rank, pick)
    shown = numbers(task)
    assert len(shown) in LENGTHS[level] and all(1 <= n <= 9 for n in shown)
    assert task.answer.split() == [str(sum(shown[:n])) for n in range(2, len(shown) + 1)] == task.meta["steps"]
    assert score(task, task.answer) == score(task, str(sum(shown))) == score(task, f"so {sum(shown)} \n") == 1.0
    assert all(task.answer.startswith(hint) for hint in task.hints) and len(task.hints) == len(shown) - 2


@given(ranks, st.integers(0, 2**60), st.data())
def test_a_slip_decides(rank: int, pick: int, data: st.DataObject) -> None:
    """One wrong total anywhere, from which the others go on."""
    task = make(3, rank, pick)
    shown = numbers(task)
    at = data.draw(st.integers(1, len(shown) - 1))
    off = data.draw(st.sampled_from([-10, -1, 1, 10]))
    totals = [*accumulate(shown)]
    slipped = totals[1:at] + [t + off for t in totals[at:]]
    assert score(task, " ".join(map(str, slipped))) == 0.0
    assert score(task, "") == score(task, " ".join(task.meta["steps"][:-1])) == 0.0
    assert answer(score, task, " ".join(map(str, slipped))) == str(slipped[-1])


@pytest.mark.parametrize("level", [1, 2, 3])
def test_lengths_have_a_heavy_tail(level: int) -> None:
    """In one round through the slots as in all of them: the share of n digits is n^-3, to the nearest slot."""
    sizes = [len(make(level, rank, 0).meta["numbers"]) for rank in range(2 * SLOTS)]
    assert sizes[:SLOTS] == sizes[SLOTS:] and set(sizes) <= {*LENGTHS[level]} and max(sizes) == max(LENGTHS[level])
    every = sum(n**-3 for n in LENGTHS[level])
    for n in LENGTHS[level]:
        below = SLOTS * sum(m**-3 for m in LENGTHS[level] if m <= n) / every
        assert abs(sum(size <= n for size in sizes[:SLOTS]) - below) <= 0.5 + 1e-9


def test_the_longest_answer_fits() -> None:
    for level, most in FAMILY.max_tokens.items():
        nines = [9 * n for n in range(2, max(LENGTHS[level]) + 1)]
        assert most == len(" ".join(map(str, nines))) + 1


def test_it_shares_no_problem_with_the_task_chain() -> None:
    short = {len(load_task("chain", level=n).train[0].meta["numbers"]) for n in (1, 2, 3, 4)}
    assert not short & {n for lengths in LENGTHS.values() for n in lengths}
