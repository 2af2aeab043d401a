"""Threads for calls that wait. Python ends without them, unlike those of `concurrent.futures`, which it joins: a run
that is stopped at once must not wait for a tool that hangs."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any

Work = tuple[Future[Any], Callable[[], Any]]


class Threads(Executor):
    """Up to `most` of them, each begun where none is idle."""

    def __init__(self, most: int, name: str) -> None:
        self.most, self.name, self.begun = most, name, 0
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._work.put((future, partial(fn, *args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self.begun < self.most:
            self.begun += 1
            threading.Thread(target=self._serve, daemon=True, name=f"{self.name}-{self.begun}").start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Each thread ends after what it is doing; nothing is waited for."""
        for _ in range(self.begun):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            _done(*work)
            del work  # an idle thread keeps nothing alive
            self._idle.release()


def _done(future: Future[Any], call: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
