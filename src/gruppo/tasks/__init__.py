"""Tasks: generated problems with scorers, files and datasets, and the judge that runs a scorer safely.

`load_task("addition", level=2)`, `load_task("./data.jsonl")` or `load_task("./mine.py:make")`. Light to import, because
every worker process of a scorer imports it.
"""

from dataclasses import fields
from typing import Any

from gruppo.tasks.base import Family, Scorer, Task, TaskSet
from gruppo.tasks.imports import load_object, nearest
from gruppo.tasks.settings import TaskConfig

__all__ = [
    "BUILT_IN",
    "NAMES",
    "Family",
    "Scorer",
    "Task",
    "TaskConfig",
    "TaskSet",
    "family",
    "load_object",
    "load_task",
]

BUILT_IN = ("addition", "chain", "countdown", "sorting")  # the tasks that the shipped weights have learned
NAMES = (*BUILT_IN, "knapsack", "longchain", "preference", "sums")


def family(name: str) -> Family:
    """The built-in family of that name; a world is one, too."""
    if name in NAMES:
        return load_object(f"gruppo.tasks.{name}:FAMILY")
    worlds: tuple[str, ...] = tuple(load_object("gruppo.envs.registry:BUILT_IN"))
    if name in worlds:
        return load_object("gruppo.envs.family:family")(name)
    raise ValueError(
        f"task={name!r}: no such task.{nearest(name, (*NAMES, *worlds))} Built in: {', '.join(NAMES)}, humaneval; "
        f"environments: {', '.join(worlds)}; several of them: mix:NAME+NAME. Your own: ./data.jsonl, hf:NAME, gym:NAME "
        "or ./file.py:make."
    )


def load_task(
    name: str,
    level: int | str | None = None,
    seed: int = 0,
    train_size: int | None = None,
    held_out_size: int = 1_000,
    scorer: str | None = None,
    **options: Any,
) -> TaskSet:
    """A task by name: built in, `mix:NAME+NAME`, `./data.jsonl`, `hf:NAME`, `gym:NAME`, or `./file.py:make`.

    `level` is a number or a mixture such as "1-3". `scorer` replaces the scorer of the task: a name such as
    "numeric", or the import path of your own, `./file.py:reward`. Further arguments are settings of a task
    (`prompt="question"` is `task.prompt=question`, see `TaskConfig`); all others are passed to the gym task or to
    your make.
    """
    from gruppo.tasks.load import load

    if level == "":
        raise ValueError(f"level='' of {name} is not a level. Write level=2 or level='1-3'.")
    if train_size is not None and train_size < 1:
        raise ValueError(f"train_size={train_size}: the split would be empty. Use at least 1.")
    known = {f.name for f in fields(TaskConfig)}
    settings = {k: v for k, v in options.items() if k in known}
    rest = {k: v for k, v in options.items() if k not in known}
    settings["options"] = {**settings.get("options", {}), **rest}
    levels = "" if level is None else str(level)
    return load(TaskConfig(name, levels, seed, train_size or 0, reward=scorer or "", **settings), held_out_size)
