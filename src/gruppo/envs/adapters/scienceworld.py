"""ScienceWorld (Wang et al. 2022): experiments of an elementary school in a text world, with gold paths, on Java.

The number of a task chooses a variation, of the training fold, or of the test fold for those held out. The reward is
the score at the end, from 0 to 1; a task that was failed has 0. A step takes tenths of a second. The library lists
things in an order that may be another one the next time: here they are sorted.
"""

from collections.abc import Sequence
from functools import cache
from itertools import groupby
from typing import Any

from gruppo.envs.adapters import facts_of
from gruppo.envs.adapters.java import OneGame, next_of
from gruppo.envs.base import POLICY, Seen
from gruppo.tasks.base import Task
from gruppo.tasks.imports import library, nearest

LONGEST = 200  # characters of an action that are passed on
UNKNOWN = "No known action matches that input."
MOST = 100_000  # the server's own limit of turns; ours comes first


@cache
def server() -> OneGame:
    return OneGame(library("scienceworld", "env:scienceworld needs it", "envs").ScienceWorldEnv("", envStepLimit=MOST))


class ScienceWorld:
    """`turns` is the limit of steps; `simplifications` are the library's, such as easy."""

    seats = (POLICY,)
    can = frozenset({"gold"})

    def __init__(self, which: str, turns: int = 100, simplifications: str = "") -> None:
        self.name, self._game, self.turns, self._easier = f"env:scienceworld/{which}", which, turns, simplifications
        self._server = server()
        games = list(self._server.java.get_task_names())
        if which not in games:
            raise ValueError(f"{self.name}: no such task.{nearest(which, games)} Tasks: {', '.join(games)}.")

    def reset(self, task: Task) -> Seen:
        self._task, self._said = facts_of(task), list[str]()
        self._server.owner = self
        text, facts = self._begin()
        self._gold = list(self._server.java.get_gold_action_sequence())
        goal = str(facts["taskDesc"]).removeprefix("Task Description:").strip()
        self.seen = Seen(f"{goal}\n{in_order(text)}", state=_key(facts))
        return self.seen

    def step(self, action: str) -> Seen:
        if self.seen.done:
            return Seen(self.seen.text, state=self.seen.state, valid=False, done=True)
        self._server.regained(self, self._begin, self._said)
        said = _plain(action)
        self._said.append(said or "look around")  # what is no action must not reach the game
        text, _, done, facts = self._server.java.step(self._said[-1])
        valid = bool(said) and not text.startswith(UNKNOWN)
        out = not done and len(self._said) >= self.turns
        over = bool(done) or out
        self.seen = Seen(
            in_order(text) if valid else "that is not possible here",
            POLICY,
            _key(facts),
            valid,
            {"task": max(float(facts["score"]), 0.0) / 100} if over else {},
            done=over,
            truncated=out,
        )
        return self.seen

    def look(self) -> Seen:
        return self.seen

    def gold(self) -> str:
        """The next action of the library's gold path; empty for who has left it."""
        return next_of(self._gold, self._said)

    def _begin(self) -> tuple[str, dict[str, Any]]:
        number, held_out = self._task
        java = self._server.java
        java.load(self._game, 0, self._easier)
        variations: Sequence[int] = list(java.get_variations_test() if held_out else java.get_variations_train())
        java.load(self._game, variations[number % len(variations)], self._easier, generateGoldPath=True)
        return java.reset()


def _plain(action: Any) -> str:
    """The action as it is passed on; empty if it is none, or would begin the task anew."""
    if not isinstance(action, str) or len(action) > LONGEST or not action.isascii() or not action.isprintable():
        return ""
    said = " ".join(action.split())
    return "" if said.lower().startswith("reset") else said


def in_order(text: str) -> str:
    """The text with its lists sorted: lines that begin with a tab, where they follow each other."""
    out: list[str] = []
    for listed, lines in groupby(text.strip().splitlines(), lambda line: line.startswith("\t")):
        some = list(lines)
        out += sorted(some) if listed else some
    return "\n".join(out)


def _key(facts: dict[str, Any]) -> str:
    return f"{in_order(facts['look'])}\n{in_order(facts['inv'])}"
