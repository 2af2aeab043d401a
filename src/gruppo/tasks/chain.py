"""Sums of many digits, with or without steps: the answer to `sum 8 5 9 4:` is `26`, or `13 22 26`.

Levels 1 to 4 have 3, 5, 7 and 9 digits from 1 to 9. Only the last number counts, so the policy chooses how long its
answer is. The shipped weights are right far more often when they write the running totals: RL lengthens the answers by
itself, and a length penalty has a real effect. The same digits in another order are the same problem.
"""

from itertools import accumulate

from gruppo.tasks.answers import answered_by
from gruppo.tasks.base import Family, Task, beginnings
from gruppo.tasks.numbering import arrange, multiset, multisets

LENGTH = {1: 3, 2: 5, 3: 7, 4: 9}


def count(level: int) -> int:
    return multisets(9, LENGTH[level])


def make(level: int, rank: int, pick: int) -> Task:
    ordered = [v + 1 for v in multiset(rank, LENGTH[level])]
    shown = arrange(ordered, pick)
    totals = list(accumulate(shown))
    steps = [f"{t}+{n}={t + n}" for t, n in zip(totals, shown[1:], strict=False)]
    return Task(
        uid=f"chain/{level}/{'+'.join(map(str, ordered))}",
        prompt=f"sum {' '.join(map(str, shown))}:",
        answer=str(totals[-1]),
        level=level,
        source="chain",
        solution="\n".join([*steps, str(totals[-1])]),
        meta={
            "numbers": shown,
            "totals": totals[1:],
            "steps": [*map(str, totals[1:])],
            "hints": beginnings([*map(str, totals[1:])], " "),
        },
    )


def last_word(task: Task, text: str) -> str:
    return next(reversed(text.split()), "")


@answered_by(last_word)
def score(task: Task, text: str) -> float:
    """1 if the last word of the text is the sum, whatever comes before it."""
    return float(last_word(task, text) == task.answer)


FAMILY = Family(
    name="chain",
    count=count,
    make=make,
    scorer="gruppo.tasks.chain:score",
    max_tokens={1: 12, 2: 18, 3: 24, 4: 32},
    default=2,
)
