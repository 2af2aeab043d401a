"""A child process and its pipes, seen from the parent: requests are length-prefixed bytes, replies are lines of JSON.

The other end is `child.py`. Nothing that a child sends is unpickled here. No signals are used, so a channel works in
any thread.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Any

from gruppo.tasks.child import MOST

_BOOT = (
    "import json, sys; from importlib import import_module; "
    "sys.path[:] = json.loads(sys.argv[2]); import_module(sys.argv[1]).main()"
)


class Hung(Exception):
    """No reply came in time."""


class Died(Exception):
    """The process has ended; the message says how."""


class Woken(Exception):
    """`wake` was called."""


INSIDE = "GRUPPO_INSIDE_A_JUDGE"  # set in the processes that load a user's scorer


def refuse_inside() -> None:
    """A file that trains when it is imported, and is loaded as a reward, would train without end."""
    if os.environ.get(INSIDE):
        raise ValueError(
            "the file of a reward starts gruppo when it is loaded, and that would load it again, and so on. Put what "
            "starts it under  if __name__ == '__main__':  or move the reward to a file of its own."
        )


class Channel:
    """Runs `main()` of a module in a process of its own, until `close()`, or until this object or Python ends.

    `gather` are seconds between two reads of the replies: if many come at once, to wake up for each one is expensive.
    """

    def __init__(self, module: str, environment: Mapping[str, str] | None = None, gather: float = 0.0) -> None:
        command = [sys.executable, "-c", _BOOT, module, json.dumps([os.path.abspath(p) for p in sys.path])]
        # In a session of its own, so that Ctrl-C reaches the parent only, and the parent decides.
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, bufsize=0, env=environment, start_new_session=True
        )
        self._chunks: SimpleQueue[bytes | None] = SimpleQueue()
        self._replies: list[Any] = []  # the next one is the last
        self._rest: list[bytes] = []  # of a line without its end, which has so many bytes
        self._size = 0
        self.close = weakref.finalize(self, _stop, self._process, os.getpid())
        threading.Thread(target=_collect, args=(self._process.stdout, self._chunks, gather), daemon=True).start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, body: bytes) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        data = memoryview(len(body).to_bytes(8, "little") + body)
        try:
            while data:
                data = data[pipe.write(data) :]
        except (OSError, ValueError):  # broken, or closed by `close`
            raise Died(self._ending()) from None

    def wake(self) -> None:
        """Ends a `read` that can be woken, from another thread."""
        self._chunks.put(None)

    def read(self, seconds: float, wakes: bool = False) -> tuple[str, Any]:
        """The next reply, (kind, content). One that has arrived is returned however late we are."""
        deadline = time.monotonic() + seconds
        while not self._replies:
            try:
                chunk = self._chunks.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise Hung from None
            if chunk is None:
                if wakes:
                    raise Woken
                continue
            if not chunk:
                raise Died(self._ending())
            *lines, rest = chunk.split(b"\n")
            if lines:
                lines[0] = b"".join([*self._rest, lines[0]])
                self._rest, self._size = [], 0
            self._rest.append(rest)
            self._size += len(rest)
            if self._size > MOST:  # a child that writes without end is never late
                raise Died(f"an answer of more than {MOST >> 20} MiB; {self._ending()}")
            self._replies = _parsed(lines)[::-1]
        try:
            reply = self._replies.pop()
            kind, content = json.loads(reply) if isinstance(reply, bytes) else reply
        except (TypeError, ValueError) as error:  # the child wrote to the pipe on purpose
            raise Died(f"garbled reply: {error}") from None
        return kind, content

    def _ending(self) -> str:
        code = _end(self._process)
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"exit code {code}"


def _parsed(lines: list[bytes]) -> list[Any]:
    """All replies at once, which is fastest; if one is garbled, the lines as they are."""
    try:
        return json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        return list(lines)


def _collect(pipe: Any, chunks: "SimpleQueue[bytes | None]", gather: float) -> None:
    """Reads replies as they come; an empty chunk is the end. In a thread, because Windows cannot wait for pipes."""
    with pipe:
        while chunk := pipe.read(1 << 16):
            chunks.put(chunk)
            if gather:
                time.sleep(gather)
    chunks.put(b"")


def _end(process: "subprocess.Popen[bytes]") -> int:
    """Kills the child and everything it started, and reaps it; returns its exit code."""
    if process.returncode is None:  # not reaped yet, so the pid is still ours
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (AttributeError, OSError):  # Windows has no process groups
            process.kill()
    return process.wait()


def _stop(process: "subprocess.Popen[bytes]", owner: int) -> None:
    if os.getpid() != owner:  # a fork of the parent must not end the parent's child
        return
    _end(process)
    if process.stdin is not None:
        process.stdin.close()
