"""Preferences: `sort 52 17 31:` with two recorded answers, `17 31 52` chosen over `17 52 31`.

The problems of `sorting`, with the same ones held out. Two writers of different care answer each problem; chosen is
what has more numbers in their places, so that the chosen one may be wrong too and only better. What counts at the end
is the same share of numbers in their places. The rewards are recorded with the answers (`meta["answers"]`); a method
that samples is judged by the scorer.

Length says nothing: an answer with a number too few is rejected about as often as one with a number too many. With
slips that only leave numbers out, DPO learned to write long: the policy repeated numbers, and its win rate fell from
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
TWICE = 0.62  # so that the chosen answer is as often the longer as the shorter one


def make(level: int, rank: int, pick: int) -> Task:
    problem = sorting.make(level, rank, pick)
    return replace(
        problem,
        uid=f"preference{problem.uid.removeprefix('sorting')}",
        source="preference",
        meta={**problem.meta, "answers": _two_answers(problem)},
    )


def _two_answers(problem: Task) -> list[dict[str, Any]]:
    """Better first; drawn again while both are worth the same."""
    draw = Random(hash64("preference", problem.uid))
    while True:
        texts = [_write(problem, care, draw) for care in CARES]
        worth = [score(problem, text) for text in texts]
        if worth[0] != worth[1]:
            rows = [{"text": t, "reward": r} for t, r in zip(texts, worth, strict=True)]
            return sorted(rows, key=lambda row: -float(row["reward"]))


def _write(problem: Task, care: float, draw: Random) -> str:
    """An answer of a writer of that care; where a number would be missing, often one stands twice instead."""
    text, numbers = write(problem, care, draw), problem.answer.split()
    if len(text.split()) < len(numbers) and draw.random() < TWICE:
        at = draw.randrange(len(numbers))
        numbers.insert(at, numbers[at])
        return " ".join(numbers)
    return text


def score(task: Task, text: str) -> float:
    """The share of places that hold the right number; 1 only for a right answer."""
    return sorting.score_places(task, text)


FAMILY = Family(
    name="preference",
    count=sorting.count,
    make=make,
    scorer="gruppo.tasks.preference:score",
    max_tokens={level: most + 3 for level, most in sorting.FAMILY.max_tokens.items()},  # one number more
    default=2,
    split_as="sorting",
)
