"""Coroutines for callers that are none: they run in one event loop, in a thread of this process, and are waited for.

One loop for all, because an MCP server, a lock or a queue of the sandbox belongs to the loop that it was made in. Only
one that is blocked is left: what comes after it gets a new loop.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
PULSE = 2.0  # seconds in which a loop must show that it runs
_starting = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}  # by process: a fork has no threads of its parent


class Blocked(Exception):
    """A coroutine does not let the loop go on, so no limit can end it."""


def waited(work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
    """What the coroutine returns. Call it from any thread but that of the loop itself.

    After every `seconds` the loop is looked at: `Blocked` is raised if it does not run.
    """
    loop = _loop()
    future = asyncio.run_coroutine_threadsafe(work, loop)
    while True:
        try:
            return future.result(seconds)
        except TimeoutError:
            if future.done():  # that of the coroutine, or it has just come to its end
                return future.result()
            if not _runs(loop):
                _leave(loop)
                future.cancel()
                raise Blocked from None


def _runs(loop: asyncio.AbstractEventLoop) -> bool:
    beat = threading.Event()
    loop.call_soon_threadsafe(beat.set)
    return beat.wait(PULSE)


def _leave(loop: asyncio.AbstractEventLoop) -> None:
    """Its thread goes on, if ever, with what it has."""
    with _starting:
        if _loops.get(os.getpid()) is loop:
            del _loops[os.getpid()]


def _loop() -> asyncio.AbstractEventLoop:
    with _starting:
        found = _loops.get(os.getpid())
        if found is None:
            found = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=_forever, args=(found,), daemon=True, name="tools").start()
        return found


def _forever(loop: asyncio.AbstractEventLoop) -> None:
    """Runs the loop. An exit that a task raises ends `run_forever`: without another one, all who wait would hang."""
    while True:
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()
