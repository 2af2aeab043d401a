"""The judge: runs a scorer in a process of its own, so that no scorer can hang, crash or garble training.

A failure is a status and never a reward of 0 (pitfalls 21 and 26). No signals are used, so it works in any
thread. Why not pebble: see the comparison in `tests/tasks/test_judge.py`.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Literal

from gruppo.tasks.base import Scorer, Task
from gruppo.tasks.extract import answer_of
from gruppo.tasks.imports import split_path

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from gruppo.tasks.worker import main; main()"

_GATHER = 0.0005  # seconds between two looks at the replies: to wake up for each costs more than to judge


@dataclass(frozen=True)
class Verdict:
    """What an answer is worth, by component; or why that is not known (then there are no components)."""

    components: dict[str, float]
    status: Literal["ok", "env_error", "timeout"] = "ok"
    error: str = ""


class _Hung(Exception):
    """The worker did not answer in time."""


class _Died(Exception):
    """The worker ended by itself."""


class Judge:
    """Scores answers with the scorer of an import path, at most `seconds` each (or a call, if batched).

    A scorer is `(task, text) -> number or {name: number}`, or `(tasks, texts) -> [...]`; a plain number is
    the component "task". A class, or a factory, is called once with the arguments of a `Scorer` and gives such a
    function, which may keep state. The worker starts with the first call (or `start()`) and is kept. When an answer
    takes too long, it is killed with everything it has started, and a new one goes on with the answers that
    are left; `restarts` counts that. The state of a scorer ends with its worker: the new one begins as the first did.
    """

    def __init__(self, scorer: str | Scorer, seconds: float = 5.0, start_seconds: float = 60.0) -> None:
        given = scorer if isinstance(scorer, Scorer) else Scorer(scorer)
        where, name = split_path(given.path)
        for label, value in (("seconds", seconds), ("start_seconds", start_seconds)):
            if not value > 0:
                raise ValueError(f"{label}={value}: every answer would be too late. Give a number above 0.")
        self.scorer, self.args = f"{where}:{name}", dict(given.args)
        self.seconds = seconds
        self.start_seconds = start_seconds
        self.restarts = 0
        self._worker: _Worker | None = None
        self._loaded = False
        self._lock = threading.Lock()

    def start(self) -> "Judge":
        """Starts the worker now; a ValueError says why the scorer cannot be loaded."""
        with self._lock:
            self._ready()
        return self

    def score(self, items: Sequence[tuple[Task, str]]) -> list[Verdict]:
        """One verdict for each (task, answer), in their order. Only a scorer that never loaded raises."""
        rows = self._all("score", items)
        return [row if isinstance(row, Verdict) else Verdict(*row) for row in rows]

    def answers(self, groups: Sequence[Sequence[tuple[Task, str]]]) -> list[list[str]]:
        """What each text of each group answers, "" for nothing; answers of a group that mean the same are equal.

        The scorer says it (see `tasks.answers`), in `seconds` a group. Where it cannot, equal texts are equal answers.
        """
        rows = self._all("answers", groups)
        return [
            row if isinstance(row, list) else [answer_of(text) for _, text in group]
            for row, group in zip(rows, groups, strict=True)
        ]

    def _all(self, kind: str, items: Sequence[Any]) -> list[Any]:
        """The reply for each item; a Verdict that says why where there is none."""
        with self._lock:
            replies: list[Any] = []
            try:
                while len(replies) < len(items):
                    self._round(kind, items[len(replies) :], replies)
            except BaseException:
                self._drop()  # interrupted: replies that nobody waits for must not reach the next call
                raise
            return replies

    def close(self) -> None:
        """Ends the worker. A later call of `score` starts a new one."""
        with self._lock:
            self._drop()

    def __enter__(self) -> "Judge":
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _ready(self) -> "_Worker":
        if self._worker is not None and not self._worker.alive:
            self._drop()
        if self._worker is None:
            self.restarts += self._loaded
            self._worker = _Worker(self.scorer, self.args, self.start_seconds)
            self._loaded = True
        return self._worker

    def _round(self, kind: str, items: Sequence[Any], replies: list[Any]) -> None:
        """Asks about items until all are done or one has brought the worker down; adds the replies in order."""
        wanted = len(replies) + len(items)
        worker, trouble = self._send(kind, items)
        if worker is None:
            replies += [Verdict({}, "env_error", trouble) for _ in items]
            return
        try:
            while len(replies) < wanted:
                how, content = worker.read(self.seconds)
                replies += content if how == "all" else [content]
        except (_Hung, _Died) as end:
            self._drop()
            status = "timeout" if isinstance(end, _Hung) else "env_error"
            lost = len(items) if worker.batch and kind == "score" else 1
            replies += [Verdict({}, status, str(end)) for _ in range(lost)]

    def _send(self, kind: str, items: Sequence[Any]) -> "tuple[_Worker | None, str]":
        """Hands the items to a worker; without one, says why."""
        try:
            request = pickle.dumps((kind, list(items)), protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            return None, f"The tasks cannot be sent to the scorer: {error}. Put plain values into Task.meta."
        trouble = ""
        for _ in range(2):  # one that died between two calls is replaced: no answer is to blame
            try:
                worker = self._ready()
                worker.send(request)
                said, content = worker.read(self.start_seconds)
                return (worker, "") if said == "begun" else (None, content)
            except (OSError, _Died, _Hung) as error:
                self._drop()
                trouble = f"The scorer's process cannot be reached. {error}"
            except ValueError as error:
                if not self._loaded:
                    raise
                return None, f"The scorer's process could not be started again: {error}"
        return None, trouble


class _Worker:
    """One process with its pipes. `read` waits for a reply, a given time at most."""

    def __init__(self, scorer: str, args: dict[str, Any], start_seconds: float) -> None:
        command = [sys.executable, "-c", _BOOT, json.dumps([os.path.abspath(p) for p in sys.path])]
        # A session of its own: Ctrl-C reaches the parent only, and the parent decides.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        self._chunks: SimpleQueue[bytes] = SimpleQueue()
        self._lines: list[bytes] = []
        self._rest = b""
        self.close = weakref.finalize(self, _stop, self._process, os.getpid())  # also when Python exits
        threading.Thread(target=_collect, args=(self._process.stdout, self._chunks), daemon=True).start()
        self.batch = self._begin(scorer, args, start_seconds)

    def _begin(self, scorer: str, args: dict[str, Any], seconds: float) -> bool:
        try:
            self.send(pickle.dumps((scorer, args)))
            kind, content = self.read(seconds)
        except _Hung:
            self.close()
            raise ValueError(
                f"{scorer} was not loaded within {seconds:g} s, so nothing can be judged. "
                "Raise start_seconds, or import less in its file."
            ) from None
        except (_Died, OSError) as error:
            self.close()
            raise ValueError(f"{scorer}: the process that loads it died, so nothing can be judged. {error}") from None
        if kind == "refused":
            self.close()
            raise ValueError(content)
        return content

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, body: bytes) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        data = memoryview(len(body).to_bytes(8, "little") + body)
        while data:
            data = data[pipe.write(data) :]

    def read(self, seconds: float) -> tuple[str, Any]:
        """The next reply. What has come already is read first, however late we are."""
        deadline = time.monotonic() + seconds
        while not self._lines:
            try:
                chunk = self._chunks.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise _Hung(
                    f"Judging took longer than {seconds:g} s: the scorer was killed and nothing is scored. "
                    "Raise task.seconds, or make the scorer faster."
                ) from None
            if not chunk:
                raise _Died(self._last_words())
            *self._lines, self._rest = (self._rest + chunk).split(b"\n")
            self._lines.reverse()
        try:
            return json.loads(self._lines.pop())
        except ValueError as error:  # only by writing to the pipe on purpose
            raise _Died(f"The scorer garbled the reply, so the answer has no reward: {error}.") from None

    def _last_words(self) -> str:
        code = _end(self._process)
        try:
            how = f"signal {signal.Signals(-code).name}"
        except ValueError:
            how = f"exit code {code}"
        return (
            f"The scorer's process died ({how}) and the answer has no reward. "
            "Look for os._exit or a crash in a C library; stderr may say more."
        )


def _collect(pipe: Any, chunks: "SimpleQueue[bytes]") -> None:
    """Reads replies as they come; an empty chunk is the end. A thread: Windows cannot wait for pipes."""
    with pipe:
        while chunk := pipe.read(1 << 16):
            chunks.put(chunk)
            time.sleep(_GATHER)
    chunks.put(b"")


def _end(process: "subprocess.Popen[bytes]") -> int:
    """Kills the worker and what it has started, waits for it, so that no zombie stays; its exit code."""
    if process.returncode is None:  # not yet waited for, so its number cannot be another's by now
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (AttributeError, OSError):  # Windows has no process groups
            process.kill()
    return process.wait()


def _stop(process: "subprocess.Popen[bytes]", owner: int) -> None:
    if os.getpid() != owner:  # a fork of the parent must not end the parent's worker
        return
    _end(process)
    if process.stdin is not None:
        process.stdin.close()
