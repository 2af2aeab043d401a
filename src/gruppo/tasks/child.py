"""The child's end of a `Channel`. Light to import, because a scorer that hangs is restarted."""

import json
import os
import signal
import threading
from queue import SimpleQueue
from typing import Any, BinaryIO

MOST = 64 << 20  # bytes of a reply


class Parent:
    """The pipes to the parent, moved off stdin and stdout: prints go to stderr, and input() is empty."""

    def __init__(self) -> None:
        requests, replies = os.dup(0), os.dup(1)  # not inherited by processes that the scorer starts
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # the parent has no stderr
            os.dup2(nothing, 1)
        self._replies = replies
        self._pid = os.getpid()
        _first_to_go()
        self._inbox: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=_receive, args=(os.fdopen(requests, "rb"), self._inbox), daemon=True).start()

    def receive(self) -> bytes:
        return self._inbox.get()

    def send(self, kind: str, content: Any = None) -> None:
        if os.getpid() != self._pid:  # a fork that came back from the user's code, and would answer the next call
            os._exit(0)
        body = json.dumps([kind, content]).encode() + b"\n"
        if len(body) > MOST:
            raise ValueError(
                f"the answer has {len(body) >> 20} MiB, and at most {MOST >> 20} are read. Give less text."
            )
        data = memoryview(body)
        try:
            while data:
                data = data[os.write(self._replies, data) :]
        except BrokenPipeError:  # the parent has been killed
            _end_group()


def _first_to_go() -> None:
    """If memory runs out, Linux ends this process and not the run."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass


def _receive(requests: BinaryIO, inbox: "SimpleQueue[bytes]") -> None:
    """In a thread, so that the child ends with its parent even while a scorer hangs."""
    while True:
        head = requests.read(8)
        body = requests.read(int.from_bytes(head, "little")) if len(head) == 8 else b""
        if not body:
            _end_group()
        inbox.put(body)


def _end_group() -> None:
    """Ends this process and, where it leads its process group, everything it started."""
    if hasattr(os, "getpgrp") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)
