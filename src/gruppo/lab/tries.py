"""A task for the claim of UFO: guess a number, without a hint. Trained on as a method likes, judged by five tries.

    gruppo train task=gruppo.lab.tries:five model=tiny-agent method=ufo task.options.width=8

It is the world `guess` with one turn a try, so that higher and lower are never heard: a guess is right, or wrong. A
held-out task has five tries, whatever the method does in training, and is worth 1 if one of them is right: with eight
numbers 1/8 for a player who says the same again and again, 0.49 for one who guesses, 5/8 for one who never repeats. The
range is always the same and the number is chance, so that, as in Kuhn poker, nothing could be held out.
"""

from dataclasses import replace
from typing import Any

from gruppo.envs.family import task_of
from gruppo.envs.guess import LARGEST, Guess
from gruppo.envs.wrappers import Retry
from gruppo.tasks import load_task
from gruppo.tasks.base import Task, TaskSet
from gruppo.tasks.numbering import hash64

TRAIN, HELD_OUT = 8_000, 1_000


class FiveTries(Retry):
    """`guess` again and again; the right number is worth 1 at any of five tries."""

    def __init__(self) -> None:
        super().__init__(Guess(), tries=5, decay=1.0, penalty=0.0)


def five(width: int = 8, seed: int = 0, held_out_size: int = HELD_OUT) -> TaskSet:
    """A number from 1 to `width`, again and again."""
    if not 2 <= width <= LARGEST:
        raise ValueError(f"width={width}: there is nothing to guess, or no such range. Use 2 to {LARGEST}.")
    held = [_task(width, hand, {"env": "gruppo.lab.tries:FiveTries"}) for hand in range(min(held_out_size, HELD_OUT))]
    train = [_task(width, HELD_OUT + TRAIN * seed + hand, {}) for hand in range(TRAIN)]
    return replace(load_task("guess", level=1), name="five", train=train, held_out=held)


def _task(width: int, hand: int, meta: dict[str, Any]) -> Task:
    facts = {"low": 1, "high": width, "secret": 1 + hash64("five", hand) % width, "hand": hand, "turns": 1}
    task = task_of(Guess, facts)
    return replace(task, meta=task.meta | meta)
