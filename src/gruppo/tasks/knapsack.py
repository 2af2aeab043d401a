"""Knapsacks with many best packings: an answer to `14 from 3 5 6 9 2:` is `9+5`, `5+6+3` or `9+3+2`.

The answer adds up some of the numbers, each as often as it is given at most. It is worth its sum as a share of the
target, and nothing if it is more than that: so `9+3` is worth 12/14, and `9+6` is worth 0. Levels 1 to 3 have five, six
and eight numbers from 1 to 9, and at least 2, 3 and 6 different packings that reach the target exactly (the order of
the numbers does not count). So a policy can be right in many ways: `held_out/distinct` counts those that it finds. The
same numbers and target in another order are the same problem.
"""

from collections import Counter
from functools import lru_cache

from gruppo.tasks.answers import answered_by
from gruppo.tasks.base import Family, Task, beginnings
from gruppo.tasks.numbering import arrange, multiset, multisets

SHAPE = {1: (5, 2), 2: (6, 3), 3: (8, 6)}  # numbers, and the fewest best packings
_LARGEST = 9
_MAX_CHARS = 100

Numbers = tuple[int, ...]


@lru_cache(maxsize=4)
def problems(level: int) -> list[tuple[Numbers, int]]:
    """All problems of a level: (ascending numbers, target)."""
    size, fewest = SHAPE[level]
    rows: list[tuple[Numbers, int]] = []
    for rank in range(multisets(_LARGEST, size)):
        numbers = tuple(v + 1 for v in multiset(rank, size))
        ways = _ways(numbers)
        rows += [(numbers, target) for target in sorted(ways) if ways[target] >= fewest]
    return rows


def _ways(numbers: Numbers) -> dict[int, int]:
    """{sum: in how many different ways some of the numbers have it}; equal numbers are not told apart."""
    ways = {0: 1}
    for number, times in Counter(numbers).items():
        more: dict[int, int] = {}
        for total, n in ways.items():
            for k in range(times + 1):
                more[total + k * number] = more.get(total + k * number, 0) + n
        ways = more
    return ways


def count(level: int) -> int:
    return len(problems(level))


@lru_cache(maxsize=65536)
def packings(numbers: Numbers, target: int) -> tuple[Numbers, ...]:
    """All different packings of ascending numbers that reach the target, each in descending order."""
    if target == 0:
        return ((),)
    found: list[Numbers] = []
    for i, number in enumerate(numbers):
        if number <= target and number not in numbers[i + 1 :]:  # the last of equal ones is the largest of the packing
            found += [(number, *rest) for rest in packings(numbers[:i], target - number)]
    return tuple(found)


def make(level: int, rank: int, pick: int) -> Task:
    numbers, target = problems(level)[rank]
    best = packings(numbers, target)
    answer = "+".join(map(str, best[pick % len(best)]))
    return Task(
        uid=f"knapsack/{level}/{','.join(map(str, numbers))}>{target}",
        prompt=f"{target} from {' '.join(map(str, arrange(numbers, pick)))}:",
        answer=answer,
        level=level,
        source="knapsack",
        solution=answer,
        meta={"numbers": list(numbers), "target": target, "best": len(best), "hints": _hints(answer)},
    )


def _hints(answer: str) -> tuple[str, ...]:
    return beginnings([*(f"{number}+" for number in answer.split("+")[:-1]), answer])


def packed(task: Task, text: str) -> str:
    """The packing of a text, its numbers in descending order; "" if it is none."""
    parts = "".join(text.split()).split("+")
    if len(text) > _MAX_CHARS or not all(part.isdecimal() and part.isascii() and part[0] != "0" for part in parts):
        return ""
    chosen = [*map(int, parts)]
    if Counter(chosen) - Counter(task.meta["numbers"]):
        return ""
    return "+".join(map(str, sorted(chosen, reverse=True)))


@answered_by(packed)
def score(task: Task, text: str) -> float:
    """The sum of the packing as a share of the target; 0 if it is more, or no packing."""
    found = packed(task, text)
    total = sum(map(int, found.split("+"))) if found else 0
    return total / task.meta["target"] if total <= task.meta["target"] else 0.0


@answered_by(packed)
def score_best(task: Task, text: str) -> float:
    """1 if the packing reaches the target, else 0."""
    return float(score(task, text) == 1)


FAMILY = Family(
    name="knapsack",
    count=count,
    make=make,
    scorer="gruppo.tasks.knapsack:score",
    max_tokens={1: 10, 2: 12, 3: 16},
    default=1,
    graded=True,
)
