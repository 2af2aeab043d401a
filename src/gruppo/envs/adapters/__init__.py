"""Environments of other libraries: `env:gymnasium/ID`, `env:minigrid/ID`, `env:open_spiel/ID`, and more (`ADAPTERS`).

Each is played in a process of its own, which can be killed (`hosted.py`). Options follow the id, as in
`env:gymnasium/FrozenLake-v1?is_slippery=false`; `task.options` are written there. One task in five is held out.
"""

import json
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote

from gruppo.tasks.base import Family, Task, TaskSet
from gruppo.tasks.imports import load_object, nearest
from gruppo.tasks.settings import TaskConfig, plain, refuse_unused

ADAPTERS = {
    "gymnasium": "gruppo.envs.adapters.gymnasium:Gymnasium",
    "minigrid": "gruppo.envs.adapters.minigrid:MiniGrid",
    "open_spiel": "gruppo.envs.adapters.open_spiel:OpenSpiel",
    "scienceworld": "gruppo.envs.adapters.scienceworld:ScienceWorld",
    "textarena": "gruppo.envs.adapters.textarena:TextArena",
    "textworld-express": "gruppo.envs.adapters.textworld_express:TextWorldExpress",
}
COUNT = 100_000  # numbers of tasks
TOKENS, TEXT_TOKENS = 32, 256  # of one action


def parts(name: str) -> tuple[str, str, dict[str, Any]]:
    """The library, the id and the options of `env:LIBRARY/ID?option=value`."""
    library, slash, rest = name.removeprefix("env:").partition("/")
    if library not in ADAPTERS:
        raise ValueError(
            f"{name!r}: there is no adapter {library!r}.{nearest(library, ADAPTERS)} Adapters: {', '.join(ADAPTERS)}. "
            "Write env:LIBRARY/ID."
        )
    which, _, query = rest.partition("?")
    if not slash or not which:
        raise ValueError(f"{name!r} names no environment of {library}. Write env:{library}/ID.")
    return library, which, {key: _value(text) for key, text in parse_qsl(query, keep_blank_values=True)}


def adapter(name: str) -> Any:
    """What makes the environment of that name in this process."""
    library, which, options = parts(name)
    return partial(load_object(ADAPTERS[library]), which, **options)


def load(settings: TaskConfig, held_out_size: int) -> TaskSet:
    """The tasks of an environment of another library: numbers, which it takes as seeds."""
    refuse_unused(settings, ("seed", "train_size", "options"))
    library, which, options = parts(settings.name)
    options |= plain(settings.options)
    query = "&".join(f"{quote(key)}={quote(json.dumps(value))}" for key, value in sorted(options.items()))
    name = f"env:{library}/{which}" + (f"?{query}" if query else "")

    def make(level: int, rank: int, pick: int) -> Task:
        facts = {"number": rank, "held_out": family.held_out(level, rank)}
        meta = {"env": name, "facts": facts}
        return Task(f"{library}/{which}/{rank}", which, "", level, f"{library}/{which}", meta=meta)

    family = Family(name, lambda level: COUNT, make, "", {1: TOKENS}, 1)
    made = family.task_set(None, settings.seed, settings.train_size or 20_000, held_out_size)
    return replace(made, text_tokens=TEXT_TOKENS, notes=(f"{name}: tasks are seeds; one in five is held out",))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def facts_of(task: Task) -> tuple[int, bool]:
    """The number of a task, and whether it is held out."""
    facts = task.meta.get("facts", {})
    return int(facts.get("number", 0)), bool(facts.get("held_out", False))
