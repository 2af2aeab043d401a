"""Environments that are wrong, one way each; `Good` is right, and the others differ from it in one thing."""

import itertools
import os
import time
from contextlib import suppress

from gruppo.envs.base import Seen
from gruppo.tasks import Task

TICKS = itertools.count()


class Good:
    """Say stop to win. Two other words, or a third turn, and it is over."""

    can = frozenset({"actions", "gold", "snapshot"})

    def reset(self, task: Task) -> Seen:
        self.said: tuple[str, ...] = ()
        self.over = False
        return Seen("begin", state="0")

    def step(self, action: str) -> Seen:
        if self.over:
            return Seen("over", state="over", valid=False, done=True)
        self.said = (*self.said, str(action))
        won = action == "stop"
        self.over = won or len(self.said) == 3
        rewards = {"task": float(won)} if self.over else {}
        return Seen("go on", state=str(len(self.said)), rewards=rewards, done=self.over)

    def snapshot(self) -> tuple[tuple[str, ...], bool]:
        return self.said, self.over

    def restore(self, snapshot: tuple[tuple[str, ...], bool]) -> Seen:
        self.said, self.over = snapshot
        if not self.said:
            return Seen("begin", state="0")
        rewards = {"task": float(self.said[-1] == "stop")} if self.over else {}
        return Seen("go on", state=str(len(self.said)), rewards=rewards, done=self.over)

    def gold(self) -> str:
        return "stop"

    def actions(self) -> list[str]:
        return ["stop", "wait", "look"]


class Raises(Good):
    def step(self, action: str) -> Seen:
        return super().step(action.strip())  # no text, no strip


class RaisesOften(Good):
    def step(self, action: str) -> Seen:
        raise KeyError(action)


class RaisesInReset(Good):
    def reset(self, task: Task) -> Seen:
        return Seen(str(task.meta["map"]))


class RaisesInGold(Good):
    def gold(self) -> str:
        raise RuntimeError("no way")


class Endless(Good):
    """Nothing ends it but the winning word, which nobody says."""

    can = frozenset({"actions"})

    def step(self, action: str) -> Seen:
        return Seen("go on", state="0")

    def actions(self) -> list[str]:
        return ["wait"]


class Hangs(Good):
    def step(self, action: str) -> Seen:
        time.sleep(60)
        return super().step(action)


class Exits(Good):
    def step(self, action: str) -> Seen:
        os._exit(3)


class NaN(Good):
    def step(self, action: str) -> Seen:
        seen = super().step(action)
        return Seen(seen.text, state=seen.state, rewards={"task": float("nan")} if seen.done else {}, done=seen.done)


class NoText(Good):
    def step(self, action: str) -> Seen:
        seen = super().step(action)
        return Seen(None, state=seen.state, rewards=seen.rewards, done=seen.done)  # type: ignore[arg-type]


class Empty(Good):
    def reset(self, task: Task) -> Seen:
        super().reset(task)
        return Seen("", state="0")


class NoSeen(Good):
    def reset(self, task: Task) -> str:  # type: ignore[override]
        super().reset(task)
        return "begin"


class Ticking(Good):
    """Its state is a clock, and looking moves it."""

    def look(self) -> Seen:
        return Seen("begin", state=str(next(TICKS)))


class Clock(Good):
    """What happens depends on how often it was asked before."""

    def step(self, action: str) -> Seen:
        seen = super().step(action)
        return Seen(seen.text, state=f"{seen.state} {next(TICKS)}", rewards=seen.rewards, done=seen.done)


class Forgets(Good):
    """Its snapshot lacks what was said."""

    def restore(self, snapshot: tuple[tuple[str, ...], bool]) -> Seen:
        return super().restore(((), False))


class Promises(Good):
    """Its snapshot is only promised."""

    snapshot = None  # type: ignore[assignment]


class Loses(Good):
    def gold(self) -> str:
        return "wait"


class Unjudged(Good):
    def step(self, action: str) -> Seen:
        seen = super().step(action)
        return Seen(seen.text, state=seen.state, done=seen.done)


class PaysTwice(Good):
    def step(self, action: str) -> Seen:
        if self.over:
            return Seen("over", state="over", rewards={"task": 1.0}, done=True)
        return super().step(action)


class OneSeat(Good):
    """Two seats, and only the first ever acts."""

    seats = ("left", "right")
    can = frozenset({"actions"})

    def reset(self, task: Task) -> Seen:
        super().reset(task)
        return Seen("begin", "left", "0")

    def step(self, action: str) -> Seen:
        seen = super().step(action)
        outcomes = {"left": 1.0, "right": -1.0} if seen.rewards else {}
        return Seen(seen.text, "left", seen.state, outcomes=outcomes, done=seen.done)


class Stranger(Good):
    """An agent without a seat."""

    def reset(self, task: Task) -> Seen:
        super().reset(task)
        return Seen("begin", "somebody", "0")


class NoStep:
    def reset(self, task: Task) -> Seen:
        return Seen("begin")


class WantsMore(Good):
    def __init__(self, size: int) -> None:
        self.size = size


class NoTasks(Good):
    @staticmethod
    def tasks() -> list[Task]:
        return []


class BadTasks(Good):
    def tasks(self) -> list[Task]:  # no static method
        return []


class Forks(Good):
    """A fork that comes back, too: it would answer a second time."""

    def step(self, action: str) -> Seen:
        if hasattr(os, "fork"):
            os.fork()
        return super().step(action)


class Long(Good):
    def step(self, action: str) -> Seen:
        return Seen("x" * (65 << 20), rewards={"task": 1.0}, done=True)


class Floods(Good):
    """Writes into every pipe that it finds, without end."""

    def step(self, action: str) -> Seen:
        while True:
            for fd in range(3, 20):
                with suppress(OSError):
                    os.write(fd, b"x" * 65536)
