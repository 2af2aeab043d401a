"""Ctrl-C, and the SIGTERM of a scheduler: the step is finished and saved. A second one stops at once."""

import os
import signal
import threading
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

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._on_signal) for s in SIGNALS}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1
        if self.asked == 1:
            # Not print, which this signal may have interrupted.
            os.write(2, b"\nfinishing this step, then saving; Ctrl-C again stops at once\n")
        elif self.asked == 2:
            raise KeyboardInterrupt
        else:
            os.write(2, b"\nended in the middle of stopping; the checkpoints remain\n")
            os._exit(130)
