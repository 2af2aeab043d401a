"""`task.against=random`: the games of a task set, with one seat for the policy and a scripted player in all others.

The seats take turns: the first task of a kind is played from the first seat, the next one from the second, and so on.
Where the game would be over before a seat has acted, the next seat plays. A task says in `meta` who plays it and from
where, so that all that is seen is still a function of the task and the actions.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from gruppo.envs.base import offers, seats_of
from gruppo.envs.players import opponent
from gruppo.envs.registry import BUILT_IN, env_class, make_env
from gruppo.envs.wrappers import Against
from gruppo.tasks.base import Task, Tasks, TaskSet, domains_of
from gruppo.tasks.settings import TaskConfig

PLAYER, SEAT = "against", "seat"  # in the meta of a task


def against(made: TaskSet, settings: TaskConfig) -> TaskSet:
    """The set with the player of the settings in the other seats. Worlds with one seat, of a mixture, stay."""
    name = settings.against
    worlds = made.env.split("+") if made.env and not settings.agent else []
    seats = {world: _seats(world, settings) for world in worlds}
    if not any(len(s) > 1 for s in seats.values()):
        games = [world for world in BUILT_IN if len(seats_of(env_class(world))) > 1]
        what = "has one seat" if worlds else "is not a game"
        raise ValueError(
            f"task.against={name}: task={settings.name} {what}, so nobody plays against the policy. Leave it "
            f"out, or use a game ({', '.join(games)})."
        )
    return replace(made, train=_seated(made.train, name, seats), held_out=_seated(made.held_out, name, seats))


def placed(env: Any, task: Task) -> Any:
    """The environment as the task is played in it: from one seat, if there is a player for the others."""
    return Against(env, task.meta[PLAYER], task.meta[SEAT]) if PLAYER in task.meta else env


def _seats(world: str, settings: TaskConfig) -> tuple[str, ...]:
    """The seats of a world. A game without this player, or without it in the process of the game, is refused."""
    env, name = make_env(world), settings.against
    try:
        seats = seats_of(env)
        if len(seats) > 1:
            opponent(env, name)
            if settings.hosted and world not in BUILT_IN:
                _refuse_hosted(env, world, name)
    except ValueError as error:
        raise ValueError(str(error).replace("player=", "task.against=", 1)) from None
    finally:
        if hasattr(env, "close"):
            env.close()
    return seats


def _refuse_hosted(env: Any, world: str, name: str) -> None:
    """Refuses a player that is code of the world. A process is asked for nothing but actions and the gold path."""
    there = [who for who, call in (("gold", "gold"), ("random", "actions")) if offers(env, call)]
    if name.partition(":")[0] not in there:
        others = f", or use task.against={' or '.join(there)}" if there else ""
        raise ValueError(
            f"task.against={name}: not with task.hosted=yes, as this player is a function of {world}, and a game in a "
            f"process of its own cannot ask it. Leave task.hosted out{others}."
        )


def _seated(tasks: Sequence[Task], name: str, seats: Mapping[str, tuple[str, ...]]) -> Tasks:
    domains = cache(lambda: domains_of(tasks))

    def make(index: int) -> Task:
        task = tasks[index]
        world = str(task.meta.get("env", ""))
        if len(seats.get(world, ())) < 2:
            return task
        turn = bisect_left(domains()[task.domain], index)  # in its domain: levels take turns, too
        order = [seats[world][(turn + i) % len(seats[world])] for i in range(len(seats[world]))]
        ways = [replace(task, meta={**task.meta, PLAYER: name, SEAT: seat}) for seat in order]
        return ways[0] if world not in BUILT_IN else next(filter(_begins, ways), ways[0])

    return Tasks("against", len(tasks), make, domains)


def _begins(task: Task) -> bool:
    """Whether its seat has something to do."""
    return not placed(make_env(str(task.meta["env"])), task).reset(task).done
