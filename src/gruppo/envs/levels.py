"""Own files of levels: `task=./levels.jsonl`, where each row names its `env` and has the facts of one task.

    {"env": "sokoban", "level": 1, "turns": 12, "board": ["#####", "#@$.#", "#####"]}
    {"env": "./mine.py:World", "prompt": "find the exit", "seed": 3}

`env`, `level` and `prompt` are ours, all other fields are the facts: `task.meta["facts"]`. Each row is built once, so
that a level that cannot be played is refused before anything starts.
"""

from dataclasses import replace
from functools import cache
from hashlib import blake2b
from typing import Any

from gruppo.envs.alarm import Late, limit_of, within
from gruppo.envs.base import name_of
from gruppo.envs.family import TEXT_TOKENS, TOKENS, content, task_of
from gruppo.envs.guard import TIMEOUT
from gruppo.envs.hosted import Hosted
from gruppo.envs.registry import BUILT_IN, env_class, make_env
from gruppo.tasks.base import Task, TaskSet, parse_levels
from gruppo.tasks.build import in_order, split_rows
from gruppo.tasks.files import USED
from gruppo.tasks.loaded import when_forgotten
from gruppo.tasks.numbering import hash64
from gruppo.tasks.rows import Read, Table
from gruppo.tasks.settings import TaskConfig, refuse_unused

OURS = ("env", "level", "prompt")
TURNS = 30  # of a level that does not say


def task_set(table: Table, held_out: Table | float, settings: TaskConfig, digest: str) -> TaskSet:
    """The set of a file of levels, with a share of them or another file held out."""
    refuse_unused(settings, tuple(name for name in USED if name in ("level", "seed", "train_size", "held_out")))
    rows = _read(table, settings)
    if isinstance(held_out, Table):
        kept = _read(held_out, settings)
        known = {r.prompt_hash for r in kept}
        rest = [r for r in rows if r.prompt_hash not in known]
    else:
        kept, rest = split_rows(rows, held_out, table.name)
    levels = tuple(sorted({r.task.level for r in rest + kept}))
    if settings.level:
        levels = parse_levels(table.name, settings.level, levels)
    train = in_order([r.task for r in rest if r.task.level in levels], f"seed {settings.seed}")
    held = in_order([r.task for r in kept if r.task.level in levels], "held out")
    if not train:
        raise ValueError(f"{table.name}: every level is held out, so there is nothing to train on. Hold out fewer.")
    worlds = dict.fromkeys(t.meta["env"] for t in (*train, *held))
    return TaskSet(
        name=table.name,
        train=train[: settings.train_size or None],
        held_out=held,
        scorer="",
        max_tokens=TOKENS,
        levels=levels,
        notes=(f"{table.name}: {len(train)} levels to train on, {len(held)} held out, played in {', '.join(worlds)}",),
        digest=digest,
        text_tokens=TEXT_TOKENS,
        env="+".join(worlds),
    )


def _read(table: Table, settings: TaskConfig) -> list[Read]:
    found: dict[str, Read] = {}
    for i, row in enumerate(table.rows):
        try:
            task = _task(table.name, dict(row), limit_of(settings), settings.hosted)
        except ValueError as error:
            raise ValueError(f"{table.where(i)}: {error} Correct the row or remove it.") from None
        same = blake2b(f"{task.meta['env']} {content(task.meta['facts'])} {task.prompt}".encode(), digest_size=16)
        found.setdefault(task.uid, Read(task, same.digest()))
    _world.cache_clear()  # ends the processes of worlds
    return list(found.values())


def _task(source: str, row: dict[str, Any], seconds: float, hosted: bool) -> Task:
    name, level, prompt = row.pop("env", None), row.pop("level", 1), row.pop("prompt", "")
    if not isinstance(name, str) or not isinstance(prompt, str) or not isinstance(level, int) or level is True:
        raise ValueError(f"env={name!r}, level={level!r}, prompt={prompt!r}: give two texts and a whole number.")
    if name in BUILT_IN:
        row.setdefault("turns", TURNS)
        if not isinstance(row["turns"], int) or row["turns"] < 1:
            raise ValueError(f"turns={row['turns']!r} is no number of turns. Use 1 or more.")
        task = _built(name, row, level, prompt)
        return replace(task, uid=f"{source}/{task.uid}", source=source)
    env_class(name)  # says which names there are
    if not prompt:
        raise ValueError(f"it has no prompt, and {name} cannot make one. Add the field prompt.")
    uid = hash64("uid", name, content(row), prompt)
    task = Task(f"{source}/{level}/{uid:016x}", prompt, "", level, source, meta={"env": name, "facts": row})
    world = _world(name, hosted)
    try:
        error = _reset(world, task, seconds)
    except Late:
        raise ValueError(
            f"{name} gave no answer to reset in {seconds:g} s, so it cannot be played. gruppo env check {name} says "
            f"more; if it is only slow, allow more with task.seconds={6 * seconds:g}."
        ) from None
    except Exception as error:
        raise ValueError(
            f"{name} raised {type(error).__name__} in reset ({error}), so it cannot be played. gruppo env check {name} "
            "says where."
        ) from error
    if error:
        raise ValueError(
            f"{name} failed in reset ({error}), so it cannot be played. gruppo env check {name} says more."
        )
    return task


def _reset(world: Any, task: Task, seconds: float) -> str:
    """What went wrong in the process of a world that has one. Another one raises, also `Late`."""
    if not isinstance(world, Hosted):
        within(seconds, lambda: world.reset(task), lambda: None, f"reset of {name_of(world)}, in task {task.uid!r},")
        return ""
    world.seconds = seconds
    error = world.reset(task).error
    if error.startswith(TIMEOUT):
        raise Late
    return error


def _built(name: str, facts: dict[str, Any], level: int, prompt: str) -> Task:
    world = _world(name)
    try:
        world.begin(facts)
        task = task_of(type(world), facts, level, prompt)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{name} cannot build this level ({type(error).__name__}: {error}).") from None
    world.reset(task)
    return task


@cache
def _world(name: str, hosted: bool = False) -> Any:
    return make_env(name, hosted)


when_forgotten.append(lambda _: _world.cache_clear())
