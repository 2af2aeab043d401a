"""Ctrl-C, and the SIGTERM of a scheduler: the step is finished and saved. A second one stops at once."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Once: finish the step, save, stop. Twice: KeyboardInterrupt, the last checkpoint remains. Then: end the process.

    Signals reach the main thread only; elsewhere (a notebook's worker, a server) `asked` is set by who uses it.
    """

    def __init__(self) -> None:
        self.asked = 0
        self._before: dict[signal.Signals, Any] = {}
        self._over = False
        self._hook: Callable[[Any], Any] = sys.unraisablehook

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._on_signal) for s in SIGNALS}
            self._hook, sys.unraisablehook = sys.unraisablehook, self._swallowed
        return self

    def __exit__(self, *_: Any) -> None:
        self._over = True
        if threading.current_thread() is not threading.main_thread():
            return
        if sys.unraisablehook == self._swallowed:
            sys.unraisablehook = self._hook
        for number, before in self._before.items():
            if signal.getsignal(number) == self._on_signal:  # else a later one is in front, and comes back to this one
                signal.signal(number, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._over:
            return self._pass_on(number, frame)
        self.asked += 1
        if self.asked == 1:
            # Not print, which this signal may have interrupted.
            again = b"Ctrl-C again" if number == signal.SIGINT else b"a second signal"
            os.write(2, b"\nfinishing this step, then saving; " + again + b" stops at once\n")
        elif self.asked == 2:
            raise KeyboardInterrupt
        else:
            os.write(2, b"\nended in the middle of stopping; the checkpoints remain\n")
            os._exit(130)

    def _swallowed(self, what: Any) -> None:
        """An interrupt in a destructor or the callback of a weak reference is lost: it is sent once more."""
        if not issubclass(what.exc_type, KeyboardInterrupt):
            self._hook(what)
        elif not self._over:
            self.asked = 1
            threading.Timer(0.01, self._again).start()

    def _again(self) -> None:
        if not self._over:  # else it would reach who comes after
            os.kill(os.getpid(), signal.SIGINT)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """To whom it was before: this one is over, and could not be taken out in time."""
        before = self._before[signal.Signals(number)]
        if callable(before):
            before(number, frame)
        elif before != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
