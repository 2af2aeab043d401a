"""Addition with the sum written backwards: `57+68=` is answered by `521`. A level is the number of digits (2 to 4).

The shipped weights write sums forwards, so that at first hardly an answer is right, however many are sampled; and every
problem has hints, the beginnings of its answer. A task for methods that say to learn where all answers are wrong:
task=gruppo.tasks.backwards:FAMILY. Sums that read the same both ways are left to chance: one in ten at level 2.
"""

from dataclasses import replace

from gruppo.tasks import addition
from gruppo.tasks.base import Family, Task, beginnings


def make(level: int, rank: int, pick: int) -> Task:
    problem = addition.make(level, rank, pick)
    *steps, total = problem.solution.split("\n")
    answer = total[::-1]
    return replace(
        problem,
        uid=problem.uid.replace("addition", "backwards"),
        source="backwards",
        answer=answer,
        solution="\n".join([*steps, answer]),
        meta={**problem.meta, "hints": beginnings(answer)},
    )


FAMILY = Family(
    name="backwards",
    count=addition.count,
    make=make,
    scorer="gruppo.tasks.addition:score",
    max_tokens={2: 6, 3: 8, 4: 8},
    default=2,
    split_as="addition",
)
