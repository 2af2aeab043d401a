"""Preferences: `sort 52 17 31:` with two recorded answers, `17 31 52` chosen over `17 52 31`.

The problems, and those held out, are those of `sorting`. Two writers of different accuracy answer each problem. The
chosen answer has more numbers in the right position, so it may be wrong too, and the score is the same share. The
rewards are recorded with the answers (`meta["answers"]`); sampled answers are judged by the scorer.

Length is uninformative: an answer with a missing number is rejected about as often as one with an extra number. When
errors only omitted numbers, DPO learned to write long answers: the policy repeated numbers, and its win rate fell from
0.75 after 8 steps to 0.10 after 16 (one seed).
"""

from dataclasses import replace
from random import Random
from typing import Any

from gruppo.tasks import sorting
from gruppo.tasks.base import Family, Task
from gruppo.tasks.numbering import hash64
from gruppo.tasks.writers import write

CARES = (0.6, 0.2)  # of the two writers
TWICE = 0.62  # so that the chosen answer is the longer one as often as the shorter one


def make(level: int, rank: int, pick: int) -> Task:
    problem = sorting.make(level, rank, pick)
    return replace(
        problem,
        uid=f"preference{problem.uid.removeprefix('sorting')}",
        source="preference",
        meta={**problem.meta, "answers": _two_answers(problem)},
    )


def _two_answers(problem: Task) -> list[dict[str, Any]]:
    """The better one first; drawn again while both have the same score."""
    draw = Random(hash64("preference", problem.uid))
    while True:
        texts = [_write(problem, care, draw) for care in CARES]
        worth = [score(problem, text) for text in texts]
        if worth[0] != worth[1]:
            rows = [{"text": t, "reward": r} for t, r in zip(texts, worth, strict=True)]
            return sorted(rows, key=lambda row: -float(row["reward"]))


def _write(problem: Task, care: float, draw: Random) -> str:
    """A writer's answer; instead of a missing number, it often has a repeated one."""
    text, numbers = write(problem, care, draw), problem.answer.split()
    if len(text.split()) < len(numbers) and draw.random() < TWICE:
        at = draw.randrange(len(numbers))
        numbers.insert(at, numbers[at])
        return " ".join(numbers)
    return text


def score(task: Task, text: str) -> float:
    """The share of positions with the right number; 1 only for a right answer."""
    return sorting.score_places(task, text)


FAMILY = Family(
    name="preference",
    count=sorting.count,
    make=make,
    scorer="gruppo.tasks.preference:score",
    max_tokens={level: most + 3 for level, most in sorting.FAMILY.max_tokens.items()},  # one number more
    default=2,
    split_as="sorting",
    graded=True,
)
