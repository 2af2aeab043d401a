"""Coroutines for callers that are none: they run in one event loop, in a thread of this process, and are waited for.

One loop for all, because an MCP server, a lock or a queue of the sandbox belongs to the loop that it was made in.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_starting = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}  # by process: a fork has no threads of its parent


def waited(work: Coroutine[Any, Any, T]) -> T:
    """What the coroutine returns. Call it from any thread but that of the loop itself."""
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


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
