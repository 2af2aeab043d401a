"""One process a run folder. The second one is told who holds it.

Where the file system can lock files (local ones, NFS 4), the system keeps the lock: it ends with its process, however
that ends. Where it cannot, the holder renews the file's time every few seconds, and a lock that was not renewed for a
minute belongs to nobody. Times are those of the file system, so the clocks of two machines may differ.
"""

import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

NAME = ".lock"
_HELD: set[TextIO] = set()
under_way: dict[Path, frozenset[Path]] = {}  # the folders of the runs of this process, and the user's files of each
RENEWED, STALE = 10.0, 60.0  # seconds
LOOKS = 10  # at a lock that is taken


class Lock:
    """`with Lock(folder):`; a ValueError names the process that has it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._file: TextIO | None = None
        self._done = threading.Event()
        self._who = ""

    def __enter__(self) -> "Lock":
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        self._who, tries = json.dumps(who), 0
        while self._file is None:
            try:
                file = self.path.open("a+", encoding="utf-8")
            except FileNotFoundError:  # somebody has just removed the empty folder
                self.path.parent.mkdir(parents=True, exist_ok=True)
                continue
            free = _flocked(file, exclusive=True)
            if free and _is(file, self.path):
                self._file = file
                _HELD.add(file)
                file.truncate(0)
                file.write(self._who)
                file.flush()
                break
            file.close()
            if free is None:
                self._by_time()
                break
            if not free:  # perhaps for an instant, by one who looks whether it is free
                tries += 1
                if tries > LOOKS:
                    raise ValueError(self._held())
                time.sleep(0.02)
        under_way[self.path.parent] = frozenset()
        return self

    def __exit__(self, *_: Any) -> None:
        self._done.set()
        under_way.pop(self.path.parent, None)
        if self._file is None:
            mine = self.path.is_file() and self.path.read_text(encoding="utf-8") == self._who
        else:
            mine = _is(self._file, self.path)
        if mine:  # else it was removed with the folder, or was not renewed in time and is another's
            self.path.unlink(missing_ok=True)
        if self._file is not None:
            _HELD.discard(self._file)
            self._file.close()
            self._file = None

    def _held(self) -> str:
        who: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            found = json.loads(self.path.read_text(encoding="utf-8"))
            who = found if isinstance(found, dict) and {"pid", "host", "since"} <= set(found) else {}
        by = f"process {who['pid']} on {who['host']}, since {who['since']}" if who else "another process"
        if who.get("pid") == os.getpid() and who.get("host") == socket.gethostname():
            return (
                f"{self.path.parent} is in use by this process itself: an iterator of gruppo.steps or resume_steps is "
                "still open. Close it (`.close()`), or go on with it."
            )
        return (
            f"{self.path.parent} is in use by {by}: two runs in one folder would write into each other. Wait for it, "
            "or stop it; a new run may have another save.name."
        )

    def _by_time(self) -> None:
        beside = self.path.with_name(f"{NAME}-{socket.gethostname()}-{os.getpid()}")
        beside.write_text(self._who, encoding="utf-8")  # its time is now, by the clock of the file system
        try:
            if self.path.stat().st_size and beside.stat().st_mtime - self.path.stat().st_mtime < STALE:
                raise ValueError(self._held())
            os.replace(beside, self.path)
        finally:
            beside.unlink(missing_ok=True)
        time.sleep(0.05)
        if self.path.read_text(encoding="utf-8") != self._who:  # two came at once, and the other was the last
            raise ValueError(self._held())
        threading.Thread(target=self._renew, daemon=True).start()

    def _renew(self) -> None:
        while not self._done.wait(RENEWED):
            with suppress(OSError):
                os.utime(self.path)


def goes_on_with(folder: Path, files: frozenset[Path]) -> None:
    """The run in this folder has code of these files, as it is now."""
    if folder in under_way:
        under_way[folder] = files


def held(folder: Path) -> bool:
    """Whether a process has the folder: it holds the lock or, where files cannot be locked, renews it."""
    path = folder / NAME
    try:
        with path.open("r", encoding="utf-8") as file:
            free = _flocked(file, exclusive=False)  # given back when the file is closed
            return time.time() - path.stat().st_mtime < STALE if free is None else not free
    except OSError:
        return False


def _flocked(file: TextIO, exclusive: bool) -> bool | None:
    """Locks an open file, if nobody else has; None where files cannot be locked."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is(file: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _let_go() -> None:
    """In a fork: a lock belongs to the process that took it, and must end with that one."""
    for file in _HELD:
        file.close()
    _HELD.clear()
    under_way.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
