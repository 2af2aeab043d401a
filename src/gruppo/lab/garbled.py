"""A task for the claim of SimpleTIR: a lake whose observations are garbled now and then, as a tool's answer may be.

    gruppo train task=gruppo.lab.garbled:lake model=tiny-agent task.format=words:up,down,left,right method=simpletir

What is seen instead are random words of other worlds, and what a policy answers to them is often no action at all: a
void turn. Which turns are garbled is a function of the task and the number of the turn. The world itself goes on.
"""

from dataclasses import replace
from functools import cache

from gruppo.envs.base import Seen
from gruppo.envs.lake import Lake
from gruppo.envs.words import vocabulary
from gruppo.envs.wrappers import Counting
from gruppo.tasks import load_task
from gruppo.tasks.base import Task, Tasks, TaskSet, domains_of
from gruppo.tasks.numbering import hash64

WORDS = 6  # of a garbled observation


class Garbled(Counting):
    """`lake`; of the observations after the first, `share` (in the task's meta) are random words."""

    def __init__(self) -> None:
        super().__init__(Lake())

    def stepped(self, action: str) -> Seen:
        seen = super().stepped(action)
        key = hash64("garbled", self.task.uid, self.count)
        if seen.done or key / 2**64 >= self.task.meta["share"]:
            return seen
        words = known_words()
        return replace(seen, text=" ".join(words[hash64(key, i) % len(words)] for i in range(WORDS)))


@cache
def known_words() -> tuple[str, ...]:
    return tuple(word for word in vocabulary() if word.isalpha())


def lake(
    share: float = 0.5,
    turns: int = 8,
    level: int = 1,
    seed: int = 0,
    train_size: int = 20_000,
    held_out_size: int = 1_000,
) -> TaskSet:
    """The tasks of `lake`; this share of the observations after the first is garbled, but of held-out tasks none."""
    made = load_task("lake", level=level, seed=seed, train_size=train_size, held_out_size=held_out_size, turns=turns)

    def garbled(task: Task) -> Task:
        return replace(task, meta={**task.meta, "env": "gruppo.lab.garbled:Garbled", "share": share})

    train = Tasks("garbled", len(made.train), lambda i: garbled(made.train[i]), lambda: domains_of(made.train))
    return replace(made, name="garbled", train=train)
