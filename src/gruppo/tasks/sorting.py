"""Sorting: the answer to `sort 52 17 31:` is `17 31 52`.

Levels 1 to 4 have 3, 4, 6 and 8 numbers from 10 to 99, possibly repeated. The same numbers in another order are the
same problem.
"""

from gruppo.tasks.answers import answered_by
from gruppo.tasks.base import Family, Task, answer_in, beginnings
from gruppo.tasks.numbering import arrange, multiset, multisets

LENGTH = {1: 3, 2: 4, 3: 6, 4: 8}
_LEAST, _VALUES = 10, 90


def count(level: int) -> int:
    return multisets(_VALUES, LENGTH[level])


def make(level: int, rank: int, pick: int) -> Task:
    ordered = [v + _LEAST for v in multiset(rank, LENGTH[level])]
    shown = arrange(ordered, pick)
    answer = " ".join(map(str, ordered))
    return Task(
        uid=f"sorting/{level}/{answer.replace(' ', ',')}",
        prompt=f"sort {' '.join(map(str, shown))}:",
        answer=answer,
        level=level,
        source="sorting",
        solution=_solution(shown),
        meta={"numbers": shown, "hints": beginnings(answer.split(), " ")},
    )


def _solution(shown: list[int]) -> str:
    """Takes the smallest of the remaining numbers in each step."""
    rest, lines = list(shown), []
    while len(rest) > 1:
        least = min(rest)
        rest.remove(least)
        lines.append(f"{least}, left {' '.join(map(str, rest))}")
    return "\n".join([*lines, " ".join(map(str, sorted(shown)))])


@answered_by(answer_in)
def score(task: Task, text: str) -> float:
    """1 if the text is the numbers in order, alone or after steps of the solution (spaces are ignored)."""
    return float(answer_in(task, text).split() == task.answer.split())


@answered_by(answer_in)
def score_places(task: Task, text: str) -> float:
    """The share of positions with the right number: partial credit, 1 only for a right answer."""
    wanted, given = task.answer.split(), answer_in(task, text).split()
    right = sum(w == g for w, g in zip(wanted, given, strict=False))
    return right / max(len(wanted), len(given))


FAMILY = Family(
    name="sorting",
    count=count,
    make=make,
    scorer="gruppo.tasks.sorting:score",
    max_tokens={1: 12, 2: 14, 3: 20, 4: 26},
    default=2,
)
