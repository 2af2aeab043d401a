"""Many answers at once in one worker, for a scorer that is `async def`. The other end is `together.py`.

Each answer is a message of its own, and replies come in any order. The worker ends a call that is too late. If it
cannot, because the scorer blocks its event loop, it is killed. Which answer did that is unknown, so those in the air
are judged again, one at a time.
"""

import pickle
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gruppo.tasks.channel import Channel, Died, Hung, Woken
from gruppo.tasks.jobs import SLOW, Part

if TYPE_CHECKING:
    from gruppo.tasks.pool import Lane

BLOCKS = "It could not be ended: it blocks its event loop. Use await, or asyncio.to_thread for calls that block."
GRACE = 1.0  # seconds, at least, that a worker has to end a call that is too late


class Flight:
    """The answers that one worker has in hand."""

    def __init__(self, lane: "Lane", channel: Channel) -> None:
        self.lane, self.pool, self.channel = lane, lane.pool, channel
        self.seconds = lane.pool.limits.seconds
        self.flying: dict[int, tuple[Part, float]] = {}  # number: the answer, and when it must have landed
        self.count = 0

    def run(self) -> None:
        """Serves the queue until it is empty and all answers have landed."""
        try:
            self._launch()
            while self.flying:
                first = min(due for _, due in self.flying.values())
                try:
                    kind, (number, content) = self.channel.read(first - time.monotonic(), wakes=True)
                except Woken:
                    pass
                else:
                    self._land(number, [content] if kind == "one" else self.flying[number][0].failed(content))
                self._launch()
        except (Hung, Died) as error:
            self._fall(error)

    def _launch(self) -> None:
        while len(self.flying) < self.lane.at_once and (part := self.pool.take(self.lane)):
            self.count += 1
            try:
                request = pickle.dumps((self.count, part.request()))
            except Exception as error:
                self.pool.finish(self.lane, part, part.failed(unsent(error)))
                continue
            self.flying[self.count] = part, time.monotonic() + self.seconds + max(GRACE, self.seconds)
            self.channel.send(request)

    def _land(self, number: int, replies: Sequence[Any]) -> None:
        part, _ = self.flying.pop(number)
        self.pool.finish(self.lane, part, replies)
        self.lane.suspects = max(0, self.lane.suspects - 1)

    def _fall(self, error: Exception) -> None:
        self.lane.lose()
        parts = [part for part, _ in self.flying.values()]
        if len(parts) == 1 and not self.lane.ended:
            status, said = "timeout", f"{SLOW.format(self.seconds, 'scorer was killed', 'task.seconds')} {BLOCKS}"
            if isinstance(error, Died):
                status, said = "env_error", died(error)
            self.pool.finish(self.lane, parts[0], parts[0].failed(said, status))
            self.lane.suspects = max(0, self.lane.suspects - 1)
        else:
            self.lane.suspects = len(parts)
            for part in reversed(parts):  # each goes to the front of the queue
                self.pool.finish(self.lane, part, [])
        self.flying.clear()


def unsent(error: Exception) -> str:
    return f"The tasks cannot be sent to the scorer: {error}. Use plain values in Task.meta."


def died(error: Exception) -> str:
    return (
        f"The scorer's process died ({error}), so the answer has no reward. Look for os._exit or a crash in a C "
        "library; stderr may say more."
    )
