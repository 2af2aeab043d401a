"""Ctrl-C, and the SIGTERM of a scheduler: the step is finished and saved. A second one stops at once.

Before the first step there is nothing to finish, so there the first one stops at once.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SHOW_CURSOR = b"\x1b[?25h"  # a live table has hidden it


last_words_end_the_process = False  # set by the command line: nobody comes after who would want the signals


class Stopped(KeyboardInterrupt):
    """A run was ended by a signal. Its text says what is saved; `code` is the exit code: 130, or 143 by SIGTERM."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words)
        self.code = code


class Stop:
    """Once: finish the step, save, stop. Twice: KeyboardInterrupt, the last checkpoint remains. Then: end the process.

    With `words`, which say what is saved, a run is loading until `begin()`: once is KeyboardInterrupt there, and twice
    ends the process. The command line has such a one around that of the run, for the time before it. Signals reach the
    main thread only; elsewhere (a notebook's worker, a server) `asked` is set by who uses it.
    """

    def __init__(self, words: Callable[[], str] | None = None) -> None:
        self.asked, self.number = 0, signal.SIGINT
        self.words, self.loading = words, words is not None
        self.work = "finishing this step, then saving"  # what a first signal waits for
        self.tidy: Callable[[], None] = lambda: None  # before the process is ended
        self._before: dict[signal.Signals, Any] = {}
        self._over = False
        self._hook: Callable[[Any], Any] = sys.unraisablehook

    def begin(self) -> None:
        """The first step is next. An interrupt that somebody has swallowed meanwhile ends the run here."""
        if self.loading and self.asked:
            raise self.ended()
        self.loading = False

    def ended(self) -> Stopped:
        """What ends the run, with its last words."""
        return Stopped(self.words() if self.words else "", 128 + self.number)

    def _ended(self, error: BaseException | None) -> Stopped:
        """The same; an interrupt that has words keeps them."""
        said = str(error) if isinstance(error, KeyboardInterrupt) else ""
        return Stopped(said, 128 + self.number) if said else self.ended()

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._on_signal) for s in SIGNALS}
            self._hook, sys.unraisablehook = sys.unraisablehook, self._swallowed
        return self

    def __exit__(self, kind: type[BaseException] | None = None, error: BaseException | None = None, *_: Any) -> None:
        mine = isinstance(error, KeyboardInterrupt) and self.asked  # otherwise an inner Stop has given it its words
        interrupted = mine or (isinstance(error, Exception) and self.told_to_end)
        if interrupted and self.words and last_words_end_the_process and self._before:
            on_signals(lambda *_: self._end())  # else a further one would replace the last words on their way
            self._before = {}
        words = self._ended(error) if interrupted and self.words and not isinstance(error, Stopped) else None
        self._over = True
        if threading.current_thread() is threading.main_thread():
            if sys.unraisablehook == self._swallowed:
                sys.unraisablehook = self._hook
            for number, before in self._before.items():
                if signal.getsignal(number) == self._on_signal:  # else a later one is in front, and comes back here
                    signal.signal(number, before)
        if words is not None:
            raise words from None

    @property
    def told_to_end(self) -> bool:
        """Whether an interrupt was raised, which a library may have turned into an error of its own."""
        return self.asked > (0 if self.loading else 1)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._over:
            return self._pass_on(number, frame)
        seen = signal.Signals(number)
        if not self.asked:
            self.number = seen  # before it is counted: the next signal may arrive at any call
        self.asked += 1
        if self.asked == 1 and not self.loading:
            # Not print, which this signal may have interrupted.
            again = b"Ctrl-C again" if number == signal.SIGINT else b"a second signal"
            os.write(2, b"\n" + self.work.encode() + b"; " + again + b" stops at once\n")
        elif self.asked == (1 if self.loading else 2) or _interactive():
            raise KeyboardInterrupt
        else:
            self._end()

    def _end(self) -> None:
        """The last interrupt is still on its way: nothing else may catch this one."""
        try:
            on_signals(signal.SIG_IGN)  # a third one has nothing to add
            self.tidy()
            said = f"gruppo: stopped at once. {self.words()}" if self.words else "ended in the middle of stopping"
            os.write(2, (SHOW_CURSOR if os.isatty(2) else b"") + f"\n{said.rstrip()}\n".encode())
        finally:
            os._exit(128 + self.number)

    def _swallowed(self, what: Any) -> None:
        """An interrupt in a destructor or the callback of a weak reference is lost: it is sent once more."""
        if not issubclass(what.exc_type, KeyboardInterrupt):
            self._hook(what)
        elif not self._over:
            self._send_again(0.01)

    def _send_again(self, seconds: float) -> None:
        """Where the machine is busy it may come before the timer's `start` is over, and would be lost once more."""
        self.asked = 0 if self.loading else 1
        try:
            threading.Timer(seconds, self._again).start()
        except KeyboardInterrupt:
            self._send_again(2 * seconds)

    def _again(self) -> None:
        if not self._over:  # else it would reach who comes after
            os.kill(os.getpid(), self.number)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """To whom it was before: this one is over, and could not be taken out in time."""
        before = self._before[signal.Signals(number)]
        if callable(before):
            before(number, frame)
        elif before != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def on_signals(handler: Any) -> None:
    for number in SIGNALS:
        signal.signal(number, handler)


def _interactive() -> bool:
    """In a notebook or at Python's prompt, which must not end with the run."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules
