"""Samples on the screen: what the policy writes while it is trained, and what it gets for it."""

import time
from typing import TYPE_CHECKING

from gruppo.data import Source, Use, keyed
from gruppo.train.callbacks import Callback, Step
from gruppo.train.episodes import beside, in_words, row_of

if TYPE_CHECKING:
    from gruppo.train.trainer import Trainer


class Samples(Callback):
    """One episode at the first step of the process, then one every so many seconds; 0: none."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._next = seconds, 0.0

    def step(self, trainer: "Trainer", step: Step) -> None:
        if not self.seconds or trainer.display.quiet or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self.seconds
        if said := sample(trainer, step):
            trainer.display.say(said)


def sample(trainer: "Trainer", step: Step) -> str:
    """An episode of the step in words, drawn at random; "" if there is none."""
    drawn = [e for e in step.record.drawn if e.use == Use.LEARN and e.source == Source.POLICY] or step.record.drawn
    if not drawn:
        return ""
    e = drawn[int(len(drawn) * keyed.uniform(trainer.config.seed, step.done, "shown"))]
    known = beside([e], step.record.batch, trainer.run.walk.task_of)
    row = row_of(e, step.done, *(column[0] for column in known.values()))
    return in_words(row, trainer.display.console.width)
