"""A warm start: one process imports what every run imports, then forks for each run.

A new Python spends four seconds on imports, and many runs train for two. Forking a process that has done the imports
takes 0.05 s. The forkserver of multiprocessing does not fit: it runs the caller's main script again in every child,
keeps the environment of its first call, and with Python 3.11 imports from another sys.path.
"""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import IO, Any

# Some libraries of macOS do not survive a fork, and Windows cannot fork.
CAN_FORK = sys.platform == "linux" and hasattr(socket, "send_fds")

# What a small run imports, except pyarrow, whose allocator starts a thread, tensorboard, which may import much else,
# and transformers, whose runs take minutes anyway.
WARM = (
    "gruppo.cli.commands",
    "gruppo.train.trainer",
    "gruppo.train.best",  # these three are imported when a run needs them
    "gruppo.train.loggers",
    "gruppo.train.curves",
    "matplotlib.pyplot",
    "matplotlib.backends.backend_agg",
)
_DRIVERS = ("/dev/nvidia", "/dev/kfd")
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from gruppo.lab.compare.starter import serve; serve(int(sys.argv.pop(1))); "
    "from gruppo.cli import main; sys.exit(main())"
)


def here() -> list[str]:
    """The absolute sys.path of the caller, for a process in another folder."""
    return [os.path.abspath(p) for p in sys.path]


# ---- in the caller


class WarmRun:
    """A run that the starter has forked, with the methods of Popen that the caller uses."""

    def __init__(self, starter: "Starter", pid: int) -> None:
        self._starter, self.pid = starter, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._starter.code_of(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(f"run {self.pid}", timeout or 0.0)
            time.sleep(0.02)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:  # not reaped yet, so the pid is still its own
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Starter:
    """The process that forks, and a socket to it: one answer per question. It ends with the caller."""

    def __init__(self, environment: Mapping[str, str], path: Sequence[str]) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps(list(path)), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # errors here also occur, and are reported, in a plain run
                stderr=subprocess.DEVNULL,
                env=dict(environment),
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        self._replies = self._channel.makefile("rb")
        self.ready, self.gone = False, False
        self.close = weakref.finalize(self, _close, self._channel, self._replies, self._process, os.getpid())

    def settled(self) -> bool:
        """Whether it is ready, or gone."""
        if not self.ready and not self.gone:
            try:
                self.ready = self._channel.recv(1, socket.MSG_DONTWAIT) != b""
                self.gone = not self.ready
            except BlockingIOError:
                return False
            except OSError:
                self.gone = True
        return True

    def start(self, words: Sequence[str], log: IO[bytes], lock: Sequence[int]) -> WarmRun | None:
        """`gruppo WORDS` in its own session, in this folder; it holds the lock. None: start it without forking."""
        pid = self._ask({"words": list(words), "folder": os.getcwd()}, (log.fileno(), *lock))
        return WarmRun(self, pid) if pid else None

    def code_of(self, pid: int) -> int | None:
        """The exit code of a run, or minus its signal; None while it is running."""
        code = self._ask({"wait": pid})
        if self.gone:  # the exit code is lost: kill the run; the next command resumes it
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return -signal.SIGKILL
        return code

    def _ask(self, question: dict[str, Any], files: Sequence[int] = ()) -> Any:
        if self.gone:
            return None
        try:
            if files:
                socket.send_fds(self._channel, [b" "], files)
            else:
                self._channel.sendall(b" ")
            self._channel.sendall(json.dumps(question).encode() + b"\n")
            answer = self._replies.readline()
        except OSError:
            answer = b""
        self.gone = not answer
        return json.loads(answer) if answer else None


def _close(channel: socket.socket, replies: IO[bytes], process: "subprocess.Popen[bytes]", owner: int) -> None:
    if os.getpid() == owner:
        replies.close()
        channel.close()
        process.wait()


def starter(environment: Mapping[str, str]) -> Starter:
    """The starter for this environment; torch reads OMP_NUM_THREADS while it is imported."""
    return _starter(frozenset(environment.items()), tuple(here()))


@cache
def _starter(environment: frozenset[tuple[str, str]], path: tuple[str, ...]) -> Starter:
    return Starter(dict(environment), path)


# ---- in the starter


def serve(number: int) -> None:
    """Fork for each request until the caller is gone. Returns only in a fork, which becomes the run."""
    channel = socket.socket(fileno=number)
    questions = channel.makefile("rb")
    warm_up()
    if not fit_to_fork():
        sys.exit(1)
    channel.sendall(b" ")
    while True:
        head, files, _, _ = socket.recv_fds(channel, 1, 4)
        line = questions.readline() if head else b""
        if not line:
            sys.exit(0)
        question = json.loads(line)
        if "wait" in question:
            answer = _code(question["wait"])
        elif (answer := _forked()) == 0:
            questions.close()
            channel.close()
            return _become(question["words"], question["folder"], *files)
        for file in files:
            os.close(file)
        channel.sendall(json.dumps(answer).encode() + b"\n")


def warm_up() -> None:
    """Only imports: threads and accelerators do not survive a fork."""
    import matplotlib

    matplotlib.use("Agg")
    for name in WARM:
        import_module(name)
    from gruppo import methods, tasks

    for folder in (methods, tasks):  # all of them, else a run could mix files from before and after an edit
        for module in iter_modules(folder.__path__, f"{folder.__name__}."):
            import_module(module.name)
    gc.collect()
    gc.freeze()  # the garbage collector would copy the memory that forks share


def fit_to_fork() -> bool:
    """No Python threads and no accelerator driver. (OpenBLAS ends its threads before a fork.)"""
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the listing is closed by now
            if os.readlink(f"/proc/self/fd/{number}").startswith(_DRIVERS):
                return False
    return threading.active_count() == 1


def _forked() -> int | None:
    try:
        return os.fork()
    except OSError:  # no memory, or too many processes
        return None


def _code(pid: int) -> int | None:
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def _become(words: list[str], folder: str, log: int, *lock: int) -> None:
    """Make this process like a new Python. The lock stays open, so the folder stays locked."""
    import numpy

    os.setsid()  # Ctrl-C reaches only the caller, which decides
    os.chdir(folder)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    numpy.random.seed()  # seeded at import; Python's `random` reseeds itself after a fork
    sys.argv[1:] = words
