"""Failures of an environment as a `Seen` with an error, so that one broken world costs its own episode and no other."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gruppo.envs.alarm import HOSTED, Late, within
from gruppo.envs.base import POLICY, Called, Seen
from gruppo.envs.wrappers import Wrapper
from gruppo.tasks.base import Task
from gruppo.tasks.hangs import LEAST, TASKS

WAITED = f"It cannot be interrupted in this thread, so it is waited for; {HOSTED}"
TIMEOUT, ENDED, RAISED, BROKEN = "timeout", "ended", "raised", "broken"  # how an error begins

DEAD = (
    "{} has hung {} times in a row (task.seconds={:g}), so it counts as dead, and the other episodes are not played. "
    "Look for an endless loop; gruppo env check finds it, too."
)


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


@dataclass
class Life:
    """Whether a world is dead: it has hung `LEAST` times in a row, on several tasks. As a scorer, it is then not tried
    to the end: in one process, each episode would cost its seconds. One answer in between is a sign of life."""

    row: int = 0
    tasks: set[str] = field(default_factory=set[str])

    @property
    def over(self) -> bool:
        return self.row >= LEAST and len(self.tasks) >= TASKS

    def hung(self, task: str) -> None:
        self.row += 1
        self.tasks.add(task)

    def answered(self, call: str) -> None:
        """A world that only resets is none that lives."""
        if self.row and call == "step":
            self.row = 0
            self.tasks.clear()

    def another_try(self) -> None:
        """The next draw begins: another hang is enough."""
        self.row = min(self.row, LEAST - 1)


class Guarded(Wrapper):
    """An environment that never raises: what goes wrong inside is the error of its episode.

    seconds  of a call, after which it is given up; 0: no limit
    say      is told at once, since other episodes may hang, too
    life     of all episodes in this world
    """

    def __init__(
        self, env: Any, seconds: float = 0.0, say: Callable[[str], None] = print, life: Life | None = None
    ) -> None:
        super().__init__(env)
        self.seconds, self.say, self.late, self.life = seconds, say, False, life or Life()

    def reset(self, task: Task) -> Seen:
        self.task = task
        self.seen = self._tried(lambda: self.env.reset(task), "reset", "")
        return self.seen

    def stepped(self, action: str) -> Seen:
        return self._tried(lambda: self.env.step(action), "step", action)

    def _tried(self, call: Callable[[], Any], what: str, action: Any) -> Seen:
        if self.life.over:
            self.late = True
            return failed(TIMEOUT, DEAD.format(self.name, self.life.row, self.seconds))
        try:
            seen = within(self.seconds, call, lambda: self._hangs(what, action, WAITED), self._call(what, action))
            self.life.answered(what)
            return sane(seen)
        except Late:
            self.late = True  # in the middle of something: it is not to be played again
            self.life.hung(self.task.uid)
            return failed(TIMEOUT, f"no answer to {self._hangs(what, action, 'Its episode is left out')}")
        except (Exception, SystemExit) as error:  # a world that exits does not end the run
            self.life.answered(what)
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
