"""What passes between the judge, its pool and its lanes: limits, calls, parts of calls, verdicts."""

import pickle
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from gruppo.tasks.settings import TaskConfig

SLOW = "Judging took longer than {:g} s, so the {} and the answer has no reward. Raise {}, or make the scorer faster."


@dataclass(frozen=True)
class Limits:
    """How long and how widely a scorer may work; see `TaskConfig`."""

    seconds: float = 5.0
    start_seconds: float = 60.0
    workers: int = 0
    concurrency: int = 64
    call_seconds: float = 0.0

    def __post_init__(self) -> None:
        TaskConfig(**asdict(self))  # refuses what is out of range


@dataclass(frozen=True)
class Verdict:
    """The components of an answer's reward, or why there are none."""

    components: dict[str, float]
    status: Literal["ok", "env_error", "timeout"] = "ok"
    error: str = ""


class Job:
    """One call: its items, and the replies so far."""

    def __init__(self, kind: str, items: Sequence[Any]) -> None:
        self.kind, self.items = kind, items
        self.replies: list[Any] = [None] * len(items)
        self.waiting = deque(range(len(items)))
        self.missing = len(items)
        self.future: Future[list[Any]] = Future()

    def reply(self, indices: Sequence[int], replies: Sequence[Any]) -> None:
        for index, reply in zip(indices, replies, strict=False):
            self.replies[index] = reply
        self.missing -= len(replies)
        if not self.missing:
            with suppress(InvalidStateError):  # cancelled
                self.future.set_result(self.replies)

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def give_up(self, said: Verdict) -> None:
        """The items that wait are not judged."""
        waiting = list(self.waiting)
        self.waiting.clear()
        self.reply(waiting, [said] * len(waiting))


class Part(NamedTuple):
    """Some items of a job, for one worker."""

    job: Job
    indices: list[int]

    def request(self) -> bytes:
        items = [self.job.items[i] for i in self.indices]
        return pickle.dumps((self.job.kind, items), protocol=pickle.HIGHEST_PROTOCOL)

    def failed(self, error: str, status: Any = "env_error") -> list[Any]:
        return [Verdict({}, status, error)] * len(self.indices)


def closed() -> Exception:
    return RuntimeError("the judge was closed, so the answers that were still waiting have no score.")
