"""Sums of two digits in words, for language models: the answer to "What is 3 + 4? Answer with just the number." is `7`.

30 of the 100 sums are held out, always the same; the two orders of a sum are in the same split. There is one level. The
last number of an answer counts, so a sentence can be right too.
"""

import re
from dataclasses import dataclass
from functools import cache

from gruppo.tasks.answers import answered_by
from gruppo.tasks.base import Family, Task
from gruppo.tasks.extract import last_number
from gruppo.tasks.numbering import Shuffle, hash64

DOUBLES, PAIRS = 2, 14  # held out: 2 sums such as 3 + 3, and 14 pairs of digits in both orders


@cache
def _ranks(split: str) -> tuple[int, ...]:
    """The sums of a split; a sum is 10 a + b."""
    pairs = [(a, b) for a in range(10) for b in range(a)]
    held = {(a, a) for a in map(Shuffle(10, hash64("split", "sums", "doubles")), range(DOUBLES))}
    held |= {pairs[i] for i in map(Shuffle(len(pairs), hash64("split", "sums", "pairs")), range(PAIRS))}
    every = [(10 * a + b, (max(a, b), min(a, b)) in held) for a in range(10) for b in range(10)]
    return tuple(rank for rank, out in every if out == (split == "held_out"))


@dataclass(frozen=True)
class Sums(Family):
    """A family with its own split."""

    def held_out(self, level: int, rank: int) -> bool:
        return rank in _ranks("held_out")

    def rank(self, level: int, split: str, seed: int, index: int) -> int:
        ranks = _ranks(split)
        return ranks[Shuffle(len(ranks), hash64("order", self.name, split, seed))(index)]

    def size(self, level: int, split: str) -> int:
        return len(_ranks(split))


def make(level: int, rank: int, pick: int) -> Task:
    a, b = divmod(rank, 10)
    return Task(
        uid=f"sums/{a}+{b}",
        prompt=f"What is {a} + {b}? Answer with just the number.",
        answer=str(a + b),
        level=level,
        source="sums",
        solution=str(a + b),
        meta={"a": a, "b": b, "hints": (f"{a} + {b} =",)},
    )


@answered_by(lambda task, text: last_number(text) or "")
def score(task: Task, text: str) -> float:
    """1 if the last number in the text is the sum."""
    numbers = re.findall(r"-?[0-9]+(?:\.[0-9]+)?", text)
    return float(bool(numbers) and numbers[-1] == task.answer)


FAMILY = Sums(
    name="sums",
    count=lambda level: 100,
    make=make,
    scorer="gruppo.tasks.sums:score",
    max_tokens={1: 16},
    default=1,
)
