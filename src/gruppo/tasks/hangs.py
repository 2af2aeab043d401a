"""Tells a scorer that is dead from one that hangs on some answers.

It is dead if it has hung `LEAST` times in a row, on several tasks, and twice as often as it can have answers in hand:
those end together. If it has hung before, the row must be so long that chance makes it once in a million.
"""

from collections.abc import Sequence
from math import ceil, log
from typing import Any

from gruppo.tasks.jobs import Job, Part, Verdict

LEAST = 12  # hangs in a row
TASKS = 3  # tasks among them, if the call has as many: one bad row may hang all its answers
CHANCE = 1e-6
HUNG = "Look for an endless loop, a lock or a server that does not answer"


def timed_out(reply: Any) -> bool:
    """Whether the scorer hung on this answer."""
    return (reply.status if isinstance(reply, Verdict) else reply[1]) == "timeout"


class Hangs:
    """Counts the replies of a pool. `dead` once there is no hope; `notes` are sentences for the user."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.row, self.judged, self.hung = 0, 0, 0  # hangs in a row; all calls of the scorer, and hangs among them
        self.tasks: set[str] = set()
        self.dead = False
        self.notes: list[str] = []

    def count(self, part: Part, replies: Sequence[Any], at_once: int) -> None:
        """Replies to the first items of a part; `at_once` answers can be in hand."""
        for index, reply in zip(part.indices, replies, strict=False):
            self.judged += 1
            if not timed_out(reply):
                self.row, self.dead = 0, False
                self.tasks.clear()
                continue
            self.hung, self.row = self.hung + 1, self.row + 1
            self.tasks.add(part.job.items[index][0].uid)
            self._look(part, at_once)

    def prefer_others(self, job: Job) -> None:
        """After a few hangs, an answer of a task that has not hung comes first: it tells whether the scorer lives."""
        if self.row < LEAST // 4:
            return
        other = next((i for i in job.waiting if job.items[i][0].uid not in self.tasks), None)
        if other is not None:
            job.waiting.remove(other)
            job.waiting.appendleft(other)

    def _look(self, part: Part, at_once: int) -> None:
        most = self._most(at_once)
        if self.row == most // 4:
            self.notes.append(
                f"the scorer has hung {self.row} times in a row (task.seconds={self.seconds:g}). After {most} times, "
                "the other answers of a call are not judged any more."
            )
        # The tasks of the call are counted only when it matters.
        if not self.dead and self.row >= most and len(self.tasks) >= min(TASKS, _tasks(part)):
            self.dead = True
            self.notes.append(self.said)

    def _most(self, at_once: int) -> int:
        before = self.judged - self.row
        share = (self.hung - self.row) / before if before else 0.0
        unlikely = log(CHANCE) / log(share) if 0 < share < 1 else 0
        return max(LEAST, 2 * at_once, ceil(unlikely))

    @property
    def said(self) -> str:
        return (
            f"The scorer has hung {self.row} times in a row (task.seconds={self.seconds:g}), so it counts as dead, and "
            f"the answers that wait have no reward. {HUNG}; if it is only slow, raise task.seconds."
        )

    @property
    def verdict(self) -> Verdict:
        return Verdict({}, "timeout", self.said)


def _tasks(part: Part) -> int:
    return len({task.uid for task, _ in part.job.items})
