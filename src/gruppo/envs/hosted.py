"""An environment in a process of its own, which can be killed: for worlds that may hang, crash or leak.

A step that takes longer than `seconds` ends the process and the episode, with an error that begins with `timeout`; a
process that ends by itself gives one that begins with `ended`. The next reset starts a new process. There are no
snapshots across processes: `Replayed(Hosted(…))` has them.
"""

import os
import pickle
import threading
from collections.abc import Mapping
from typing import Any

from gruppo.envs.base import POLICY, Called, Seen, need
from gruppo.envs.guard import BROKEN, ENDED, RAISED, TIMEOUT, failed, sane
from gruppo.tasks.base import Task
from gruppo.tasks.channel import INSIDE, Channel, Died, Hung

SECONDS, START = 10.0, 120.0
STARTING = threading.BoundedSemaphore(max(os.cpu_count() or 1, 2))  # processes that start at the same time


class Hosted:
    """`Hosted("./mine.py:World", seconds=5)`. The process starts when it is needed, and ends with `close()`."""

    def __init__(
        self, name: str, seconds: float = SECONDS, start: float = START, options: Mapping[str, Any] | None = None
    ) -> None:
        if seconds <= 0 or start <= 0:
            raise ValueError(
                f"seconds={seconds:g}, start={start:g}: every step would be too late. Use positive numbers."
            )
        self.name, self.seconds, self.start_seconds, self.options = name, seconds, start, dict(options or {})
        self.starts = 0  # processes that were started
        self._channel: Channel | None = None
        self._offers: tuple[frozenset[str], tuple[str, ...], str] | None = None
        self.seen = Seen("", done=True)

    def start(self) -> None:
        """Starts the process, if there is none. A ValueError says why there can be none."""
        if self._channel is not None and self._channel.alive:
            return
        with STARTING:  # of hundreds at once, each would take longer than it may
            self._begin()

    def _begin(self) -> None:
        # With random hashes of strings, a world that iterates over sets would be another one in every process.
        self._channel = Channel("gruppo.envs.host_worker", {**os.environ, INSIDE: "1", "PYTHONHASHSEED": "0"})
        self.starts += 1
        try:
            self._channel.send(pickle.dumps((self.name, self.options)))
            kind, content = self._channel.read(self.start_seconds)
        except (Hung, Died) as error:
            self.close()
            why = f"took longer than {self.start_seconds:g} s" if isinstance(error, Hung) else f"ended ({error})"
            raise ValueError(f"env={self.name!r}: starting its process {why}. stderr may say why.") from None
        if kind != "ready":
            self.close()
            raise ValueError(content)
        self._offers = frozenset(content["can"]), tuple(content["seats"]), content["rules"]

    @property
    def can(self) -> frozenset[str]:
        return self._known()[0]

    @property
    def seats(self) -> tuple[str, ...]:
        return self._known()[1]

    @property
    def rules(self) -> str:
        return self._known()[2]

    def _known(self) -> tuple[frozenset[str], tuple[str, ...], str]:
        """What the environment says about itself, which only its process knows."""
        if self._offers is None:
            self.start()
        return self._offers or (frozenset(), (POLICY,), "")

    def same_as(self, other: "Hosted") -> None:
        """What another process of the same world has said about itself, so that no process is started to ask."""
        self._offers = other._offers

    def close(self) -> None:
        """Ends the process."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def reset(self, task: Task) -> Seen:
        self.start()
        self.seen = self._seen("reset", task)
        return self.seen

    def step(self, action: str) -> Seen:
        if self.seen.done:
            return Seen(self.seen.text, self.seen.agent, self.seen.state, False, done=True)
        self.seen = self._seen("step", action)
        return self.seen

    def look(self) -> Seen:
        return self.seen

    def gold(self) -> str:
        return str(self._asked("gold")) if not self.seen.done else ""

    def actions(self) -> list[str]:
        return list(self._asked("actions")) if not self.seen.done else []

    def snapshot(self) -> Any:
        need(self, "snapshot", "nothing else can be copied out of its process")

    def restore(self, snapshot: Any) -> Any:
        self.snapshot()

    def _seen(self, call: str, argument: Any) -> Seen:
        kind, content = self._ask(call, argument)
        if kind == "seen":
            try:
                return sane(Seen(**{**content, "tools": tuple(Called(**c) for c in content["tools"])}))
            except TypeError as error:
                return failed(BROKEN, str(error))
        return failed(kind, str(content), self.seen.agent)

    def _asked(self, call: str) -> Any:
        kind, content = self._ask(call, None)
        return content if kind == "value" else ""

    def _ask(self, call: str, argument: Any) -> tuple[str, Any]:
        if self._channel is None:
            return ENDED, "its process was closed"
        try:
            self._channel.send(pickle.dumps((call, argument)))
            kind, content = self._channel.read(self.seconds)
        except Hung:
            self.close()
            return TIMEOUT, f"no answer to {call} in {self.seconds:g} s, so its process was killed"
        except Died as died:
            self.close()
            return ENDED, f"its process ended during {call} ({died})"
        return (RAISED, content) if kind == "raised" else (kind, content)
