"""A time limit for worlds that run in this process: a hang costs its episode, and not the run.

A bell (SIGALRM) raises `Late` inside the call, so loops, sleeps and waits end; code of an extension that never comes
back to Python does not: then `watch.py` says that task.hosted is for such a world. Only with it worlds of one's own are
hosted in processes, as those of libraries are, because of what was measured: 72 µs a step instead of 2, and 0.15 s and
20 MB for every episode that is played at once. A bell costs 14 µs.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from gruppo.envs.watch import watch
from gruppo.tasks.settings import TaskConfig

T = TypeVar("T")
SECONDS = 10.0  # for a step, if task.seconds is as it is by default
GRACE = 5.0  # seconds after the bell; then it cannot be interrupted
HOSTED = "task.hosted=yes plays it in a process of its own, which is killed"


class Late(BaseException):
    """The call has taken too long. No Exception: a world that catches those must not catch this."""


def limit_of(settings: TaskConfig) -> float:
    """Seconds that a step of a world may take."""
    return SECONDS if settings.seconds == TaskConfig.seconds else settings.seconds


def within(seconds: float, call: Callable[[], T], say: Callable[[], Any], what: str) -> T:
    """What the call returns; `Late` is raised if that takes longer. 0: no limit. `what` is called, in words.

    A signal reaches the main thread only. Elsewhere (in a notebook) the call goes on, and `say` is called.
    """
    if not seconds:
        return call()
    watcher = watch()
    if watcher is None:
        return _limited(seconds, call, say)
    watcher.begin(seconds + GRACE, stuck(what, seconds + GRACE))
    try:
        return _limited(seconds, call, say)
    finally:
        watcher.end()


def stuck(what: str, seconds: float) -> str:
    return (
        f"\nwarning: {what} has not come back after {seconds:g} s and cannot be interrupted. If Ctrl-C does nothing, "
        f"end the run with  kill -9 {os.getpid()}  For such a world there is a setting: {HOSTED}, and only that "
        "episode is left out.\n"
    )


def _limited(seconds: float, call: Callable[[], T], say: Callable[[], Any]) -> T:
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        return _rung(seconds, call)
    timer = threading.Timer(seconds, say)
    timer.daemon = True
    timer.start()
    try:
        return call()
    finally:
        timer.cancel()


def _rung(seconds: float, call: Callable[[], T]) -> T:
    heard = True

    def ring(*_: Any) -> None:
        if heard:
            raise Late

    begun, before = time.monotonic(), signal.signal(signal.SIGALRM, ring)
    left, every = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again, if the world has caught the first
    try:
        try:
            return call()
        finally:
            heard = False
    finally:  # a bell of somebody else goes on
        rest = max(left - (time.monotonic() - begun), 1e-3) if left else 0.0
        signal.setitimer(signal.ITIMER_REAL, rest, every)
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)
