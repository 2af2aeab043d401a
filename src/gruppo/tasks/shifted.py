"""Sums in a code: every digit of the sum plus one, modulo 10. The answer to `57+68=` is `236`.

For claims, not one of the built-in families: `task=gruppo.tasks.shifted:FAMILY`. The shipped policy answers with the
sum and high confidence. With three digits it is never right (not once in 30,000 answers), so all groups have equal
rewards and nothing can be learned without help; with two digits, a long run finds a first right answer and learns
from there. With a prefix of the answer it is sometimes right.
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
    """1 if the text is the sum in code (spaces around it are ignored)."""
    return float(text.strip() == task.answer)


FAMILY = Family(
    name="shifted",
    count=addition.count,
    make=make,
    scorer="gruppo.tasks.shifted:score",
    max_tokens=addition.FAMILY.max_tokens,
    default=2,
)
