"""Says that a call cannot be interrupted, while Python itself stands still.

An endless call of an extension that keeps Python's lock stops the bell of `alarm.py`, all threads and Ctrl-C. So a
small process looks once a second at a page of memory that it shares with this one: when the present call must have
returned, and what to say if it has not. It starts with the first call and ends with this process.
"""

import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time
import weakref

PAGE, HEAD = 4096, struct.Struct("dI")  # when, and the length of the text that follows
CHILD = f"""
import mmap, os, select, struct, sys, time
page, said = mmap.mmap(int(sys.argv[1]), {PAGE}), 0.0
while not select.select([0], [], [], float(sys.argv[2]))[0]:
    due, size = struct.unpack_from("dI", page)
    text = page[{HEAD.size} : {HEAD.size} + size]
    if due and due != said and time.monotonic() > due == struct.unpack_from("d", page)[0]:
        said = due
        os.write(2, text)
"""


class Watch:
    """Looks every so many seconds, and writes to a descriptor (2: stderr)."""

    def __init__(self, every: float = 1.0, to: int = 2) -> None:
        self.owner = os.getpid()
        with tempfile.TemporaryFile() as file:
            file.truncate(PAGE)
            self._page = mmap.mmap(file.fileno(), PAGE)
            self._process = subprocess.Popen(
                [sys.executable, "-ISc", CHILD, str(file.fileno()), str(every)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=to,
                pass_fds=[file.fileno()],
                start_new_session=True,  # Ctrl-C is not for it
            )
        self.close = weakref.finalize(self, _stop, self._process, self.owner)

    def begin(self, seconds: float, text: str) -> None:
        """This is said unless `end` is called within so many seconds."""
        said = text.encode(errors="replace")[: PAGE - HEAD.size]
        self._page[HEAD.size : HEAD.size + len(said)] = said
        HEAD.pack_into(self._page, 0, time.monotonic() + seconds, len(said))

    def end(self) -> None:
        HEAD.pack_into(self._page, 0, 0.0, 0)


def _stop(process: "subprocess.Popen[bytes]", owner: int) -> None:
    if process.stdin is not None:
        process.stdin.close()
    if os.getpid() == owner:
        process.wait()


_watch: Watch | None = None
_none = os.name != "posix"


def watch() -> Watch | None:
    """The one of this process; None where there can be none."""
    global _watch, _none
    if (_watch is None or _watch.owner != os.getpid()) and not _none:
        try:
            _watch = Watch()
        except OSError:  # no more processes: then nothing is said
            _none = True
    return None if _none else _watch
