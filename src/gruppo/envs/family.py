"""An environment is also a task: `task=household task.level=2` gives tasks that the world `household` builds.

Worlds that number their tasks are split by number, as all generated tasks are. For those that draw them, one content in
five is held out, by a hash of the content, and a draw that belongs to the other split is repeated under another key. So
no held-out task is ever trained on, whatever the seed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from gruppo.envs.registry import BUILT_IN, env_class
from gruppo.envs.world import Draws, Facts, World
from gruppo.tasks.base import HELD_OUT, Family, Task, TaskSet
from gruppo.tasks.imports import nearest
from gruppo.tasks.numbering import hash64

DRAWN = 1_000_000  # tasks of a level that are drawn
TRIES = 10_000  # draws for one task
TOKENS, TEXT_TOKENS = 32, 256  # of one action: letter by letter, and of a model that thinks in sentences


@dataclass(frozen=True)
class WorldFamily(Family):
    """The tasks of a built-in world."""

    world: type[World[Any]] = World
    options: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    def task_set(
        self, level: int | str | None = None, seed: int = 0, train_size: int = 20_000, held_out_size: int = 1_000
    ) -> TaskSet:
        made = super().task_set(level, seed, train_size, held_out_size)
        made.train[0]  # refuses options that leave no task now, and not in the first step
        return replace(made, text_tokens=TEXT_TOKENS)

    def with_options(self, options: Mapping[str, Any]) -> "WorldFamily":
        """With facts that are set for all tasks, such as turns."""
        for name, value in options.items():
            if name not in self.world.options:
                raise ValueError(
                    f"task.options.{name}: {self.name} has no such option, so it would have no effect."
                    f"{nearest(name, self.world.options)} Options: {', '.join(self.world.options)}."
                )
            wanted = bool if name == "slippery" else int
            if type(value) is not wanted or (wanted is int and value < 1):
                kind, such = ("neither true nor false", "true") if wanted is bool else ("no whole number >= 1", "12")
                raise ValueError(
                    f"task.options.{name}={value!r} is {kind}, so no task can be made with it. Write for "
                    f"example task.options.{name}={such}."
                )
        own = dict(options)
        return replace(self, options=own, make=lambda level, rank, pick: _made(self, level, rank, own))


def family(name: str) -> WorldFamily:
    """The tasks of a built-in world."""
    if name not in BUILT_IN:
        env_class(name)  # says which names there are
        raise ValueError(
            f"task={name!r}: a world of your own has no numbered tasks. Give a TaskSet, or a file of levels."
        )
    return _family(name)


@cache
def _family(name: str) -> WorldFamily:
    return of_world(env_class(name), name)


def of_world(world: type[World[Any]], name: str) -> WorldFamily:
    """The tasks of a world, by its levels."""
    made = WorldFamily(
        name=name,
        count=lambda level: world.count(level) or DRAWN,
        make=lambda level, rank, pick: _made(made, level, rank, {}),
        scorer="",
        max_tokens=dict.fromkeys(world.levels, TOKENS),
        default=world.default,
        graded=world.graded,
        world=world,
    )
    return made


def _made(family: WorldFamily, level: int, rank: int, options: Mapping[str, Any]) -> Task:
    world = family.world
    if world.count(level):
        return task_of(world, {**world.numbered(level, rank), **options}, level)
    held = family.held_out(level, rank)
    for attempt in range(TRIES):
        facts = {**world.drawn(level, Draws(world.name, level, rank, attempt)), **options}
        if (hash64("split", content(facts)) % HELD_OUT == 0) == held and world.suits(facts):
            return task_of(world, facts, level)
    raise ValueError(
        f"{world.name}: no task of level {level} was found in {TRIES} draws"
        + (f" with {', '.join(f'{k}={v}' for k, v in options.items())}. Change task.options." if options else ".")
    )


def content(facts: Facts) -> str:
    """What makes a task this task: everything but the number of turns."""
    return json.dumps({k: v for k, v in facts.items() if k != "turns"}, sort_keys=True)


def task_of(world: type[World[Any]], facts: Facts, level: int = 1, prompt: str = "", source: str = "") -> Task:
    """The task of these facts."""
    uid = hash64("uid", json.dumps(dict(facts), sort_keys=True))
    return Task(
        uid=f"{source or world.name}/{level}/{uid:016x}",
        prompt=prompt or world.asked(facts),
        answer=world.answer(facts),
        level=level,
        source=source or world.name,
        meta={"env": world.name, "facts": dict(facts)},
    )
