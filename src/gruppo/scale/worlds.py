"""Worlds in actors of Ray: environments that live on other machines.

A question holds all that its answer depends on: the task, the actions so far, and the next one. A world is a pure
function of these, so a replacement of an actor that died plays the actions again, and the episode goes on. Worlds of
your own have processes there, as they have with task.hosted, so one that hangs or crashes costs its episode alone.
"""

import asyncio
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from gruppo.envs.base import Seen, seats_of
from gruppo.envs.guard import ENDED, RAISED
from gruppo.envs.host_worker import HOSTED, answered
from gruppo.envs.hosted import Hosted
from gruppo.envs.registry import BUILT_IN, make_env
from gruppo.envs.threads import Threads
from gruppo.scale.cluster import RESTARTED, RETRIES, Cluster, at_home, told
from gruppo.stages.converse import WAITING, Converse
from gruppo.stages.play import Play
from gruppo.tasks.base import Task
from gruppo.train.config import RunConfig

REMEDY = "Look at the world, and at the memory of that machine."


@dataclass(frozen=True)
class Asked:
    """What an actor is asked about an episode."""

    place: int  # of those worlds that the run has at once
    name: str
    episode: int  # at that place
    task: Task | None
    past: tuple[str, ...]  # actions
    call: str  # reset, step, gold or actions
    action: str
    seconds: float  # that the call may take


@dataclass
class Place:
    """A world of an actor, and where it is in its episode."""

    env: Any
    episode: int = -1
    played: int = 0  # actions


class WorldActor:
    """The actor. It holds one world for each episode that is played there now."""

    def __init__(self, here: Mapping[str, Any]) -> None:
        at_home(here)
        self.places: dict[int, Place] = {}
        self.waiting = Threads(WAITING, "world")

    async def known(self, name: str) -> tuple[str, Any, int]:
        """What a world says about itself, and the process of this actor; or why there is none."""
        return *await self._aside(name, lambda: _known(name)), os.getpid()

    async def answer(self, q: Asked) -> tuple[str, Any, int]:
        return *await self._aside(q.name, lambda: self._answer(q)), os.getpid()

    async def leave(self, place: int) -> tuple[None, int]:
        """Nobody asks for this world again."""
        if (left := self.places.pop(place, None)) is not None and isinstance(left.env, Hosted):
            left.env.close()
        return None, os.getpid()

    async def _aside(self, name: str, work: Any) -> Any:
        """Built-in worlds answer at once; the others must not hold up anybody."""
        return work() if name in BUILT_IN else await asyncio.get_running_loop().run_in_executor(self.waiting, work)

    def _answer(self, q: Asked) -> tuple[str, Any]:
        try:
            here = self.places.get(q.place) or self.places.setdefault(q.place, Place(make_env(q.name, hosted=True)))
            if isinstance(here.env, Hosted):
                here.env.seconds = q.seconds
            known = q.call == "reset" or (here.episode, here.played) == (q.episode, len(q.past))
            if not known and (said := _replayed(here.env, q)):
                return ENDED, said
            here.episode, here.played = q.episode, len(q.past) + (q.call == "step")
            return answered(here.env, q.call, q.task if q.call == "reset" else q.action)
        except (Exception, SystemExit) as error:  # a world that exits does not end the actor
            return RAISED, f"{type(error).__name__}: {error}"


def _known(name: str) -> tuple[str, Any]:
    try:
        env = make_env(name, hosted=True)
        can, rules = sorted(HOSTED & set(getattr(env, "can", ()))), str(getattr(env, "rules", ""))
        return "ready", {"can": can, "seats": list(seats_of(env)), "rules": rules}
    except ValueError as error:
        return "refused", str(error)


def _replayed(env: Any, q: Asked) -> str:
    """Plays the actions of an episode whose actor died; says so if they lead elsewhere now."""
    assert q.task is not None
    seen: Seen = env.reset(q.task)
    for i, action in enumerate(q.past):
        if seen.done:
            how = seen.error or "it is over"
            return f"its actor died, and played again its actions end the episode before action {i} ({how})"
        seen = env.step(action)
    return f"its actor died, and played again its actions end the episode ({seen.error or 'it is over'})" * seen.done


class Far(Hosted):
    """A world of an actor: see `Hosted`, which has one in a process of this machine."""

    def __init__(self, worlds: "Worlds", name: str) -> None:
        super().__init__(name)
        self.worlds, self.place, self.episode = worlds, -1, 0
        self.task: Task | None = None
        self.past: list[str] = []

    def start(self) -> None:
        if self.place < 0:
            self._offers, self.place = self.worlds.known(self.name), next(self.worlds.numbers)

    def close(self) -> None:
        if self.place >= 0:
            self.worlds.leave(self.place)
            self.place = -1

    def _ask(self, call: str, argument: Any) -> tuple[str, Any]:
        if self.place < 0:
            return ENDED, "it was left"
        if call == "reset":
            self.task, self.past, self.episode = argument, [], self.episode + 1
        action = argument if call == "step" else ""
        q = Asked(self.place, self.name, self.episode, self.task, tuple(self.past), call, action, self.seconds)
        if call == "step":
            self.past.append(argument)
        return self.worlds.answer(q)


class Worlds:
    """The worlds of a run that are actors. Each episode stays with one of them."""

    def __init__(self, cluster: Cluster) -> None:
        self.ray, self.say, self.numbers = cluster.ray, cluster.say, count()
        self.actors = [
            cluster.actor(f"world {i}", WorldActor, cluster.here, **RESTARTED)
            for i in range(cluster.config.scale.worlds)
        ]
        self.lock, self.processes, self.lost = threading.Lock(), dict[int, int](), 0
        self.offers: dict[str, tuple[frozenset[str], tuple[str, ...], str]] = {}

    def make(self, name: str, hosted: bool = False) -> Far:
        """In place of `make_env`."""
        return Far(self, name)

    def known(self, name: str) -> tuple[frozenset[str], tuple[str, ...], str]:
        """What a world says about itself; it is asked once. A ValueError says why there can be none."""
        if name not in self.offers:
            kind, content = self._got(0, self.actors[0].known.remote(name))
            if kind != "ready":
                raise ValueError(str(content))
            self.offers[name] = frozenset(content["can"]), tuple(content["seats"]), content["rules"]
        return self.offers[name]

    def answer(self, q: Asked) -> tuple[str, Any]:
        i = q.place % len(self.actors)
        return self._got(i, self.actors[i].answer.remote(q))

    def leave(self, place: int) -> None:
        self.actors[place % len(self.actors)].leave.remote(place)

    def _got(self, i: int, asked: Any) -> tuple[str, Any]:
        try:
            kind, content, process = self.ray.get([asked])[0]
        except self.ray.exceptions.RayError as error:
            if isinstance(getattr(error, "cause", None), Exception):
                raise told(error, f"world {i}", REMEDY) from error
            return ENDED, f"the actor of its world died {RETRIES + 1} times over the same question. {REMEDY}"
        with self.lock:  # episodes ask in threads of their own
            if self.processes.setdefault(i, process) != process:
                self.processes[i], self.lost = process, self.lost + 1
                self.say(f"world {i} died and was replaced; its episodes were played again")
        return kind, content


def refused(config: RunConfig) -> str:
    """Why the worlds of a run cannot be actors; "" if they can."""
    if not config.scale.worlds or not config.task.against:
        return ""
    return (
        f"scale.worlds={config.scale.worlds} with task.against={config.task.against}: the other player asks the world "
        "itself, which is in another process. Use scale.worlds=0, or leave task.against out."
    )


def worlds_of(cluster: Cluster, run: Any, here: Play) -> Play:
    """How a run plays whose worlds are actors."""
    asked, task = f"scale.worlds={run.config.scale.worlds}", run.config.task
    if not isinstance(here, Converse) or task.tools:
        what = f"task.tools={task.tools} are called" if task.tools else f"task={task.name} is answered"
        run.warn(
            f"{asked}: {what} by the process of the run, and there is no other world, so actors for them do nothing"
        )
        return here
    here.make = Worlds(cluster).make
    return here
