"""A Ray of one process, for tests of what is asked of actors, asked again, and shared."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

HERE = {"folder": os.getcwd(), "threads": 1}


class Ref:
    """A value in the store, or the answer to a question."""

    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        self.work = work

    def __await__(self) -> Generator[Any, None, Any]:
        return self.work().__await__()


class Actor:
    """An actor, which Ray restarts after `die()` with what it was made with."""

    def __init__(self, kind: type, *given: Any) -> None:
        self.made = lambda: kind(*given)
        self.inside, self.asked = self.made(), list[tuple[Any, ...]]()

    def die(self) -> None:
        self.inside = self.made()

    def __getattr__(self, verb: str) -> Any:
        async def call(*given: Any) -> Any:
            found = await getattr(self.inside, verb)(*given)
            return (*found[:-1], id(self.inside)) if isinstance(found, tuple) else id(self.inside)

        def remote(*given: Any) -> Ref:
            self.asked.append(given)
            return Ref(lambda: call(*given))

        return SimpleNamespace(remote=remote)


class Ray:
    """In place of the module."""

    exceptions = SimpleNamespace(RayError=ConnectionError)

    def put(self, value: Any) -> Ref:
        async def found() -> Any:
            return value

        return Ref(found)

    def get(self, asked: "list[Ref]") -> list[Any]:
        async def found() -> list[Any]:
            return [await ref for ref in asked]

        with ThreadPoolExecutor(1) as aside:  # a loop may be running here
            return aside.submit(asyncio.run, found()).result()


class OneProcess:
    """In place of the cluster of a run."""

    here = HERE

    def __init__(self, samplers: int = 1, judges: int = 1, worlds: int = 1) -> None:
        self.ray, self.said = Ray(), list[str]()
        self.say, self.team = self.said.append, None
        self.config = SimpleNamespace(scale=SimpleNamespace(samplers=samplers, judges=judges, worlds=worlds))

    def actor(self, _: str, kind: type, *given: Any, **__: Any) -> Actor:
        return Actor(kind, *given)
