"""Lockstep: when the requests of several callers enter the batch, so that the schedule depends on no timer.

Sums in float32 depend on the shape of the batch, so the same bits need the same schedule. In lockstep a wave begins
when every registered caller waits for the engine or is done. It holds the next requests of all callers, in the order of
their numbers, and runs to its end; who is served early goes on with its own work meanwhile. So a wave depends only on
what the callers ask, however long they take in between.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from gruppo.engines.calls import Call

T = TypeVar("T")


@dataclass(eq=False)
class Caller:
    """A task that asks again and again. `number` is its place in a wave; callers inside it have longer ones."""

    number: tuple[int, ...]
    above: "Caller | None" = None
    children: int = 0  # registered so far
    inside: int = 0  # callers inside it that are not done: they are waited for in its place


_CALLERS: ContextVar[tuple[Caller, ...]] = ContextVar("callers", default=())  # of this task, innermost last


class Waves:
    """Holds calls of registered callers until a wave begins. Other calls are not held.

    A caller must not wait for another one except through the engine: both would wait for ever.
    """

    def __init__(self, lockstep: bool) -> None:
        self.lockstep = lockstep
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._root = Caller(())
        self._active: dict[Caller, None] = {}  # in the order in which they came
        self._held: list[tuple[Caller, Call, Callable[[], None]]] = []
        self._waiting: Counter[Caller] = Counter()  # how many calls of each are held

    def _mine(self) -> Caller | None:
        """The caller that this task is, for this engine. Callers of a loop that was closed are gone."""
        if (loop := asyncio.get_running_loop()) is not self._loop:
            self._loop = loop
            self._begin_anew()
        return next((c for c in reversed(_CALLERS.get()) if c in self._active), None)

    def submit(self, call: Call, start: Callable[[], None]) -> None:
        """Start a call, now or with its wave."""
        caller = self._mine()
        if not self.lockstep or caller is None:
            start()
            return
        self._held.append((caller, call, start))
        self._waiting[caller] += 1
        self._begin()

    def drop(self, call: Call) -> None:
        """The caller went away."""
        self._held = [held for held in self._held if held[1] is not call]
        self._waiting = Counter(caller for caller, _, _ in self._held)

    def _begin(self) -> None:
        # The last first: callers mostly ask in their order, so one look is enough until the last of them has asked.
        if not self._held or any(c not in self._waiting for c in reversed(self._active) if not c.inside):
            return
        wave, self._held = sorted(self._held, key=lambda held: held[0].number), []
        self._waiting.clear()
        for _, call, start in wave:
            try:
                start()
            except Exception as error:  # the others begin all the same
                call.fail(error)

    def enter(self) -> Caller:
        above = self._mine() or self._root
        caller = Caller((*above.number, above.children), above)
        above.children += 1
        above.inside += 1
        self._active[caller] = None
        return caller

    def leave(self, caller: Caller) -> None:
        """A caller is done. Calling it twice is no harm."""
        if caller in self._active:
            del self._active[caller]
            if caller.above is not None:
                caller.above.inside -= 1
            self._begin()

    @contextmanager
    def caller(self) -> Iterator[None]:
        caller = self.enter()
        token = _CALLERS.set((*_CALLERS.get(), caller))
        try:
            yield
        finally:
            _CALLERS.reset(token)
            self.leave(caller)

    async def together(self, coroutines: Seq[Coroutine[Any, Any, T]]) -> list[T]:
        """The results of all; each is a caller, numbered in this order. If one fails, the others are cancelled."""
        callers = [self.enter() for _ in coroutines]

        async def run(caller: Caller, work: Coroutine[Any, Any, T]) -> T:
            _CALLERS.set((*_CALLERS.get(), caller))  # of this task alone
            try:
                return await work
            finally:
                self.leave(caller)

        tasks = [asyncio.create_task(run(c, work)) for c, work in zip(callers, coroutines, strict=True)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for caller, work in zip(callers, coroutines, strict=True):
                self.leave(caller)  # of a task that never began
                work.close()
