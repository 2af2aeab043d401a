"""Sums in a code: every digit of the sum plus one, 9 becoming 0. `57+68=` is answered by `236`.

A claim's task, not one of the built-in families: `task=gruppo.tasks.shifted:FAMILY`. The shipped policy says the sum
and is sure of it. With numbers of three digits it is never right (not once in 30,000 answers), so all groups are equal,
and without help nothing can be learned; with two digits a long run finds a first right answer and learns from there.
With a beginning of the answer it is right now and then.
"""

from dataclasses import replace

from gruppo.tasks import addition
from gruppo.tasks.answers import answered_by
from gruppo.tasks.base import Family, Task, beginnings


def make(level: int, rank: int, pick: int) -> Task:
    sum_ = addition.make(level, rank, pick)
    answer = "".join(str((int(digit) + 1) % 10) for digit in sum_.answer)
    return replace(
        sum_,
        uid=sum_.uid.replace("addition", "shifted", 1),
        answer=answer,
        source="shifted",
        solution=answer,
        meta={**sum_.meta, "hints": beginnings(answer)},
    )


@answered_by(lambda task, text: text.strip())
def score(task: Task, text: str) -> float:
    """1 if the text is the sum in code (spaces around it do not matter)."""
    return float(text.strip() == task.answer)


FAMILY = Family(
    name="shifted",
    count=addition.count,
    make=make,
    scorer="gruppo.tasks.shifted:score",
    max_tokens=addition.FAMILY.max_tokens,
    default=2,
)
