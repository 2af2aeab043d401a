"""Checks an environment in a process of its own, which is killed when a law takes too long."""

import os
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from gruppo.envs.check import LAWS
from gruppo.envs.registry import BUILT_IN, env_class
from gruppo.tasks.base import Task, TaskSet
from gruppo.tasks.channel import INSIDE, Channel, Died, Hung

SECONDS = 30.0  # for one law
START = 60.0


def sample(tasks: TaskSet, n: int) -> list[Task]:
    """Some tasks of both splits."""
    held = max(1, n // 3) if len(tasks.held_out) else 0
    first = [tasks.train[i] for i in range(min(n - held, len(tasks.train)))]
    return first + [tasks.held_out[i] for i in range(min(held, len(tasks.held_out)))]


def tasks_for(name: str, source: str = "", n: int = 6) -> list[Task]:
    """Tasks to check an environment with: of a task set by name or path, of the world's own levels, or an empty one.

    A class of yours may have `tasks()`, which returns a list of tasks or a TaskSet.
    """
    from gruppo.tasks import load_task

    if source:
        return sample(load_task(source), n)
    if name in BUILT_IN:
        levels = tuple(env_class(name).levels)
        return [task for level in levels for task in sample(load_task(name, level=level), max(2, n // len(levels)))]
    if name.startswith("env:"):
        return sample(load_task(name), n)
    own: Any = getattr(env_class(name), "tasks", None)
    if callable(own):
        try:
            made: Any = own()
            return sample(made, n) if isinstance(made, TaskSet) else list(made)[:n]
        except Exception as error:
            raise ValueError(
                f"{name}: its tasks() failed ({type(error).__name__}: {error}). Make it static, and return tasks."
            ) from None
    return [Task("check/0", "", "", 1, "check"), Task("check/1", "", "", 1, "check")]


def checked(name: str, tasks: Sequence[Task], seconds: float = SECONDS) -> Iterator[tuple[str, list[str] | None]]:
    """(law, what is wrong) for each law as it is checked; None: not about it. The first that hangs is the last."""
    if not tasks:
        raise ValueError(
            f"{name}: there are no tasks, so every law would hold. Give at least one, with --tasks or tasks()."
        )
    channel = Channel("gruppo.envs.check_worker", {**os.environ, INSIDE: "1"})
    law, wait = "", START
    try:
        channel.send(pickle.dumps((name, list(tasks))))
        while True:
            kind, content = channel.read(wait)
            if kind == "refused":
                raise ValueError(content)
            if kind == "done":
                return
            if kind == "begun":
                law, wait = content, seconds
            else:
                yield content[0], content[1]
    except Hung:
        yield (
            law or LAWS[0].name,
            [
                f"it hangs: no answer in {wait:g} s, so its process was killed. Give every wait inside a limit; if it "
                "is only slow, allow more with --seconds. In a run, task.hosted=yes lets it be killed as well."
            ],
        )
    except Died as died:
        yield (
            law or LAWS[0].name,
            [f"its process ended ({died}), and stderr may say why. An environment must not exit or crash."],
        )
    finally:
        channel.close()
