"""TextWorldExpress (Jansen and Côté 2023): eight text games with gold paths, on Java.

There is one Java server in a process, which plays one game at a time. An environment that finds another one's game
on it plays its own actions again first.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from gruppo.envs.adapters import facts_of
from gruppo.envs.adapters.java import OneGame, next_of
from gruppo.envs.base import POLICY, Seen
from gruppo.tasks.base import Task
from gruppo.tasks.imports import library, nearest

LONGEST = 200  # characters of an action that are passed on


class Server(OneGame):
    """The Java server, and the game that is loaded."""

    def __init__(self, java: Any) -> None:
        super().__init__(java)
        self.loaded = ("", "")

    def load(self, game: str, parameters: str) -> None:
        if self.loaded != (game, parameters):
            self.java.load(gameName=game, gameParams=parameters)
            self.loaded = (game, parameters)

    def reset(self, game: str, parameters: str, number: int, held_out: bool) -> tuple[str, dict[str, Any]]:
        self.load(game, parameters)
        seeds = self.java.getValidSeedsTest() if held_out else self.java.getValidSeedsTrain()
        fold = "test" if held_out else "train"
        return self.java.reset(seed=seeds[number % len(seeds)], gameFold=fold, generateGoldPath=True)


@cache
def server(turns: int) -> Server:
    return Server(
        library("textworld_express", "env:textworld-express needs it", "envs").TextWorldExpressEnv(envStepLimit=turns)
    )


class TextWorldExpress:
    """`turns` is the limit of steps; other options are parameters of the game, such as numLocations=3."""

    seats = (POLICY,)
    can = frozenset({"actions", "gold"})

    def __init__(self, which: str, turns: int = 50, **parameters: Any) -> None:
        self.name, self._game, self.turns = f"env:textworld-express/{which}", which, turns
        self._server = server(turns)
        games = list(self._server.java.getGameNames())
        if which not in games:
            raise ValueError(f"{self.name}: no such game.{nearest(which, games)} Games: {', '.join(games)}.")
        self._parameters = ",".join(f"{key}={value:d}" for key, value in parameters.items())

    def reset(self, task: Task) -> Seen:
        self._task, self._said = facts_of(task), list[str]()
        text, facts = self._begin()
        self._gold = list(self._server.java.getGoldActionSequence())
        self._valid = sorted(facts["validActions"])
        self.seen = Seen(f"{facts['taskDescription']}\n{text}".strip(), state=self._key(facts))
        return self.seen

    def step(self, action: str) -> Seen:
        if self.seen.done:
            return Seen(self.seen.text, state=self.seen.state, valid=False, done=True)
        self._server.regained(self, self._begin, self._said)
        valid = isinstance(action, str) and action in self._valid
        said = action if valid else "look around"  # what the game does not know must not reach it
        self._said.append(said)
        text, _, done, facts = self._server.java.step(said)
        done = bool(done)
        out = done and not facts["tasksuccess"] and not facts["taskfailure"]
        self._valid = sorted(facts["validActions"])
        self.seen = Seen(
            text.strip() if valid else "that is not possible here",
            POLICY,
            self._key(facts),
            valid,
            {"task": float(bool(facts["tasksuccess"]))} if done else {},
            done=done,
            truncated=out,
        )
        return self.seen

    def look(self) -> Seen:
        return self.seen

    def gold(self) -> str:
        """The next action of the game's gold path; empty for who has left it."""
        return next_of(self._gold, self._said)

    def actions(self) -> Sequence[str]:
        return self._valid

    def _begin(self) -> tuple[str, dict[str, Any]]:
        self._server.owner = self
        return self._server.reset(self._game, self._parameters, *self._task)

    def _key(self, facts: dict[str, Any]) -> str:
        return f"{facts['look']}\n{facts['inventory']}"
