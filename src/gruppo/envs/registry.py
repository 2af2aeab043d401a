"""Environments by name: built in, `env:LIBRARY/ID`, `package.module:Class`, or `./file.py:Class`."""

import inspect
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from gruppo.envs.base import need
from gruppo.tasks.imports import is_path, load_object, nearest, split_path

BUILT_IN = {
    "calculator": "gruppo.envs.calculator:Calculator",
    "guess": "gruppo.envs.guess:Guess",
    "household": "gruppo.envs.household:Household",
    "kuhn": "gruppo.envs.kuhn:Kuhn",
    "lake": "gruppo.envs.lake:Lake",
    "negotiation": "gruppo.envs.negotiation:Negotiation",
    "python": "gruppo.envs.python:Python",
    "search": "gruppo.envs.search:Search",
    "shop": "gruppo.envs.shop:Shop",
    "sokoban": "gruppo.envs.sokoban:Sokoban",
    "tictactoe": "gruppo.envs.tictactoe:TicTacToe",
    "twenty": "gruppo.envs.twenty:Twenty",
    "verify": "gruppo.envs.verify:Verify",
}


def env_class(name: str) -> Any:
    """The class of an environment, or whatever makes one in this process when it is called without arguments."""
    if name.startswith("env:"):
        return import_module("gruppo.envs.adapters").adapter(name)
    if name.startswith("tools:"):  # a task of one answer, with tools
        return partial(import_module("gruppo.envs.with_tools").WithTools, name.partition(":")[2])
    if not is_path(name) and name not in BUILT_IN:
        raise ValueError(
            f"env={name!r}: no such environment.{nearest(name, BUILT_IN)} Built in: {', '.join(BUILT_IN)}. Your own: "
            "package.module:Class or ./file.py:Class. Of other libraries: env:LIBRARY/ID."
        )
    if is_path(name):
        split_path(name)
    found = load_object(BUILT_IN.get(name, name))
    missing = [
        call for call in ("reset", "step") if inspect.isclass(found) and not callable(getattr(found, call, None))
    ]
    if not callable(found) or missing:
        lacks = f"has no {' and no '.join(missing)}" if missing else f"is {type(found).__name__} and makes nothing"
        raise ValueError(
            f"env={name!r} {lacks}, so it is no environment. Name a class with reset(task) and step(action)."
        )
    return found


def made(name: str) -> Any:
    """A new environment in this process."""
    make = env_class(name)
    try:
        return make()
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(
            f"env={name!r} cannot be made without arguments ({type(error).__name__}: {error}). Give them defaults."
        ) from error


def make_env(name: str, hosted: bool = False) -> Any:
    """A new environment by name or import path. Those of other libraries get a process that can be killed.

    `hosted`: so do your own; built-in ones need none.
    """
    if name.startswith("env:") or (hosted and name not in BUILT_IN):
        return import_module("gruppo.envs.hosted").Hosted(name)
    env = made(name)
    for call in ("snapshot", "restore"):
        if not hasattr(env, call):
            with suppress(AttributeError, TypeError):  # a class that takes no attributes says it in Python's words
                setattr(env, call, lambda *_, call=call: need(env, "snapshot", f"{call} was asked for"))
    return env
