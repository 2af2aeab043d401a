"""Failures of an environment as a `Seen` with an error, so that one broken world costs its own episode and no other."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from gruppo.envs.alarm import HOSTED, Late, within
from gruppo.envs.base import POLICY, Called, Seen
from gruppo.envs.wrappers import Wrapper
from gruppo.tasks.base import Task

WAITED = f"It cannot be interrupted in this thread, so it is waited for; {HOSTED}"
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
    if not isinstance(seen.answer, str | None):
        return failed(BROKEN, f"Seen.answer is {type(seen.answer).__name__} and no text", seen.agent)
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
    """An environment that never raises: what goes wrong inside is the error of its episode.

    seconds  of a call, after which it is given up; 0: no limit
    say      is told at once, since other episodes may hang, too
    """

    def __init__(self, env: Any, seconds: float = 0.0, say: Callable[[str], None] = print) -> None:
        super().__init__(env)
        self.seconds, self.say, self.late = seconds, say, False

    def reset(self, task: Task) -> Seen:
        self.task = task
        self.seen = self._tried(lambda: self.env.reset(task), "reset", "")
        return self.seen

    def stepped(self, action: str) -> Seen:
        return self._tried(lambda: self.env.step(action), "step", action)

    def _tried(self, call: Callable[[], Any], what: str, action: Any) -> Seen:
        try:
            return sane(within(self.seconds, call, lambda: self._hangs(what, action, WAITED), self._call(what, action)))
        except Late:
            self.late = True  # in the middle of something: it is not to be played again
            return failed(TIMEOUT, f"no answer to {self._hangs(what, action, 'Its episode is left out')}")
        except (Exception, SystemExit) as error:  # a world that exits does not end the run
            return failed(RAISED, f"{type(error).__name__}: {error}")

    def _hangs(self, call: str, action: Any, then: str) -> str:
        """Says so, and returns to what there was no answer."""
        said = f"{_written(call, action)} in {self.seconds:g} s, in task {self.task.uid!r}"
        self.say(
            f"warning: {self.name} gave no answer to {said}. {then}. If it is only slow, allow more with "
            f"task.seconds={6 * self.seconds:g}; Ctrl-C twice stops the run at once."
        )
        return said

    def _call(self, call: str, action: Any) -> str:
        return f"{_written(call, action)} of {self.name}, in task {self.task.uid!r}," if self.seconds else ""


def _written(call: str, action: Any) -> str:
    return f"{call}({str(action)[:60]!r})" if call == "step" else call
