"""Worlds that look at a clock, a counter here, one way each; `Steady` does not."""

import itertools

from lucky import Lucky

from gruppo.envs.base import Seen
from gruppo.tasks import Task

TICKS = itertools.count()


class Steady(Lucky):
    def look(self) -> Seen:
        return Seen("on", state=str(self.turn))


class State(Lucky):
    """Its state has the time in it."""

    def step(self, action: str) -> Seen:
        seen = super().step(action)
        return Seen(seen.text, state=f"{seen.state} {next(TICKS)}", rewards=seen.rewards, done=seen.done)


class First(Lucky):
    """The first words tell the time: the prompt shows another one than the world."""

    def reset(self, task: Task) -> Seen:
        super().reset(task)
        return Seen(f"go {next(TICKS)}", state="0")


class Looks(Lucky):
    """Looking moves the clock."""

    def look(self) -> Seen:
        return Seen("on", state=str(next(TICKS)))


class Pays(Lucky):
    """What an episode is worth depends on the time."""

    def step(self, action: str) -> Seen:
        seen = super().step(action)
        return Seen(
            seen.text, state=seen.state, rewards={"task": float(next(TICKS))} if seen.done else {}, done=seen.done
        )
