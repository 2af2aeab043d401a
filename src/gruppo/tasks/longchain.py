"""Long sums in which a slip decides: the answer to `sum 8 5 9 … 4:` is the running totals, `13 22 … 97`.

Levels 1 to 3 have 6 to 12, 13 to 19 and 20 to 40 digits from 1 to 9; not 7 or 9, which the task chain has. Only the
last number counts, so one wrong total in the middle makes the answer wrong, however good the rest is. Lengths have a
heavy tail: the chance of n digits falls as n^-3, so most sums are short and a few are twice as long. The same digits in
another order are the same problem. Each total is a step: `meta["steps"]` has all of them, for rewards of steps.
"""

from bisect import bisect
from functools import cache
from itertools import accumulate

from gruppo.tasks.answers import answered_by
from gruppo.tasks.base import Family, Task, beginnings
from gruppo.tasks.chain import last_word
from gruppo.tasks.numbering import Shuffle, arrange, hash64, multiset, multisets

LENGTHS = {1: (6, 8, 10, 11, 12), 2: tuple(range(13, 20)), 3: tuple(range(20, 41))}
TAIL = 3.0  # the chance of n digits is proportional to n to the power -TAIL
SLOTS = 64  # problems go through these in turn, and each slot has one length
_DIGITS = 9


@cache
def _slots(level: int) -> tuple[tuple[int, int, int], ...]:
    """(digits, which of the slots with so many digits it is, how many slots have them), for each slot."""
    chances = [*accumulate(n**-TAIL for n in LENGTHS[level])]
    sizes = [LENGTHS[level][bisect(chances, chances[-1] * (i + 0.5) / SLOTS)] for i in range(SLOTS)]
    return tuple((n, sizes[:i].count(n), sizes.count(n)) for i, n in enumerate(sizes))


@cache
def count(level: int) -> int:
    """As many rounds through the slots as the length with the fewest problems for its slots allows."""
    return SLOTS * min(multisets(_DIGITS, n) // times for n, _, times in _slots(level))


def make(level: int, rank: int, pick: int) -> Task:
    size, which, times = _slots(level)[rank % SLOTS]
    order = Shuffle(multisets(_DIGITS, size), hash64("longchain", size))
    ordered = [v + 1 for v in multiset(order(rank // SLOTS * times + which), size)]
    shown = arrange(ordered, pick)
    totals = [*accumulate(shown)][1:]
    return Task(
        uid=f"longchain/{level}/{''.join(map(str, ordered))}",
        prompt=f"sum {' '.join(map(str, shown))}:",
        answer=" ".join(map(str, totals)),
        level=level,
        source="longchain",
        solution=" ".join(map(str, totals)),
        meta={"numbers": shown, "steps": [*map(str, totals)], "hints": beginnings([*map(str, totals)], " ")},
    )


@answered_by(last_word)
def score(task: Task, text: str) -> float:
    """1 if the last word of the text is the sum, whatever comes before it."""
    return float(last_word(task, text) == task.meta["steps"][-1])


def _tokens(level: int) -> int:
    """Of the longest answer: all totals of nines, each followed by a space or the end."""
    return sum(len(str(_DIGITS * n)) + 1 for n in range(2, LENGTHS[level][-1] + 1))


FAMILY = Family(
    name="longchain",
    count=count,
    make=make,
    scorer="gruppo.tasks.longchain:score",
    max_tokens={level: _tokens(level) for level in LENGTHS},
    default=1,
)
