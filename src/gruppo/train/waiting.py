"""Coroutines for callers that are not: also where an event loop is running already, as in a notebook."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
GRACE = 3.0  # seconds that cancelled tasks have to end


class Loop:
    """One event loop for many calls. If this thread is running one, ours runs in a thread of its own."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._thread = ThreadPoolExecutor(1, "gruppo") if _running() else None

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work) if self._thread is None else self._thread.submit(self._runner.run, work).result()

    def close(self) -> None:
        if self._thread is None:
            self._close()
        else:
            self._thread.submit(self._close).result()
            self._thread.shutdown()

    def _close(self) -> None:
        """What is left is cancelled. It has nothing to say: a signal that ends one of these tasks is told elsewhere."""
        loop = self._runner.get_loop()
        loop.set_exception_handler(lambda *_: None)
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            # A signal between two tasks can lose the one that was to be next, and who waits for it waits for ever.
            asyncio.gather(*left, return_exceptions=True).add_done_callback(lambda _: loop.stop())
            loop.call_later(GRACE, loop.stop)
            loop.run_forever()
            for task in (t for t in left if not t.done()):
                asyncio._unregister_task(task)
        self._runner.close()


def waited(work: Coroutine[Any, Any, T]) -> T:
    """The result of one coroutine."""
    loop = Loop()
    try:
        return loop(work)
    finally:
        loop.close()


def _running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
