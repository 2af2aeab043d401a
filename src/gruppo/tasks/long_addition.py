"""Addition of two numbers of five or six digits: longer than what the shipped weights have learned.

Most prompts are beyond reach at first, whatever is sampled, and each has hints, the digits that its answer begins with:
a task for methods that say to learn where every answer is wrong. task=gruppo.tasks.long_addition:FAMILY task.level=5
"""

from dataclasses import replace

from gruppo.tasks import addition
from gruppo.tasks.base import Family, Task


def make(level: int, rank: int, pick: int) -> Task:
    problem = addition.make(level, rank, pick)
    return replace(problem, uid=f"long_{problem.uid}", source="long_addition")


FAMILY = Family(
    name="long_addition",
    count=addition.count,
    make=make,
    scorer="gruppo.tasks.addition:score",
    max_tokens={5: 9, 6: 10},
    default=5,
)
