"""Failures of an environment as a `Seen` with an error, so that one broken world costs its own episode and no other."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from gruppo.envs.base import POLICY, Called, Seen
from gruppo.envs.wrappers import Wrapper
from gruppo.tasks.base import Task

TIMEOUT, ENDED, RAISED, BROKEN = "timeout", "ended", "raised", "broken"  # how an error begins


def failed(kind: str, why: str, agent: str = POLICY) -> Seen:
    """The end of an episode that the environment spoilt. It pays nothing and is not judged."""
    return Seen("", agent, valid=False, done=True, error=f"{kind}: {why}")


def sane(seen: Any) -> Seen:
    """The same, if it is a `Seen` with text and finite rewards; else a failure that says what is wrong with it."""
    if not isinstance(seen, Seen):
        return failed(BROKEN, f"{type(seen).__name__} and not a Seen")
    for name in ("text", "agent", "state", "error"):
        if not isinstance(getattr(seen, name), str):
            return failed(BROKEN, f"Seen.{name} is {type(getattr(seen, name)).__name__} and no text")
    for name in ("rewards", "outcomes"):
        table = getattr(seen, name)
        if not isinstance(table, Mapping):
            return failed(BROKEN, f"Seen.{name} is {type(table).__name__} and no mapping", seen.agent)
        for part, r in table.items():
            if not isinstance(r, int | float) or not math.isfinite(r):
                return failed(BROKEN, f"Seen.{name}[{part!r}] is {r!r} and no finite number", seen.agent)
    if not isinstance(seen.tools, tuple) or not all(isinstance(c, Called) for c in seen.tools):
        return failed(BROKEN, f"Seen.tools is {str(seen.tools)[:60]} and no tuple of Called", seen.agent)
    return seen


class Guarded(Wrapper):
    """An environment that never raises: what goes wrong inside is the error of its episode."""

    def reset(self, task: Task) -> Seen:
        self.task = task
        self.seen = self._tried(lambda: self.env.reset(task))
        return self.seen

    def stepped(self, action: str) -> Seen:
        return self._tried(lambda: self.env.step(action))

    def _tried(self, call: Callable[[], Any]) -> Seen:
        try:
            return sane(call())
        except Exception as error:
            return failed(RAISED, f"{type(error).__name__}: {error}")
