"""Tasks: generated problems with scorers, a user's own, and the judge that runs a scorer safely.

`load_task("addition", level=2)` or `load_task("./mine.py:make")`. Light to import: the worker process of a
scorer goes through here.
"""

from dataclasses import replace
from inspect import signature
from typing import Any

from gruppo.tasks.base import Family, Task, TaskSet
from gruppo.tasks.imports import is_path, load_object, nearest, split_path

__all__ = ["BUILT_IN", "Family", "Task", "TaskSet", "family", "load_object", "load_task"]

BUILT_IN = ("addition", "chain", "countdown", "sorting")


def family(name: str) -> Family:
    """The built-in family of that name."""
    if name not in BUILT_IN:
        raise ValueError(
            f"task={name!r}: no such task, so there is nothing to train on.{nearest(name, BUILT_IN)} "
            f"Built in: {', '.join(BUILT_IN)}. One of your own: ./file.py:make, which returns a TaskSet."
        )
    return load_object(f"gruppo.tasks.{name}:FAMILY")


def load_task(
    name: str,
    level: int | str | None = None,
    seed: int = 0,
    train_size: int = 20_000,
    held_out_size: int = 1_000,
    scorer: str | None = None,
    **options: Any,
) -> TaskSet:
    """A built-in task by name, or the TaskSet that a user's `./file.py:make` returns.

    `level` is a number or a mixture such as "1-3". `scorer` is the import path of another scorer for the same
    problems, for example a reward of the user's own: `./file.py:reward`. A user's `make` is called with
    `options`, and with the other arguments that were given.
    """
    if scorer is not None:
        split_path(scorer)  # a path that cannot be one is refused here, not in the worker
    if not is_path(name):
        if options:
            raise ValueError(
                f"{name} has no option {', '.join(options)}, so it would have no effect. Leave it out; "
                "options go to a make of your own, ./file.py:make."
            )
        return family(name).task_set(level, seed, train_size, held_out_size, scorer)
    given = {"level": level, "seed": seed, "train_size": train_size, "held_out_size": held_out_size}
    plain = {"level": None, "seed": 0, "train_size": 20_000, "held_out_size": 1_000}
    return _own(name, {k: v for k, v in given.items() if v != plain[k]} | options, scorer)


def _own(path: str, arguments: dict[str, Any], scorer: str | None) -> TaskSet:
    make = load_object(path)
    if callable(make) and not isinstance(make, Family):
        try:
            signature(make).bind(**arguments)
        except TypeError as error:
            given = ", ".join(f"{k}={v!r}" for k, v in arguments.items()) or "nothing"
            raise ValueError(
                f"task={path!r} cannot be called with {given} ({error}), so there are no tasks. Give it these "
                "parameters, or leave the settings out."
            ) from None
    made = make(**arguments) if callable(make) else make
    if isinstance(made, Family):
        made = made.task_set(**arguments)
    if not isinstance(made, TaskSet):
        raise ValueError(
            f"task={path!r} gave {type(made).__name__} and not a TaskSet, so there is nothing to train on. "
            "Return gruppo.tasks.TaskSet(name, train, held_out, scorer, max_tokens)."
        )
    return made if scorer is None else replace(made, scorer=scorer)
