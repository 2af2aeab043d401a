"""Scoring in the background, while other episodes are still played."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from gruppo.data import Episode

PAUSE = 0.005  # seconds that an episode waits for others: a hand-over to the judge costs as much as many scores


class Scoring:
    """Hands episodes over to `scored` as they end, those that end together at once. The judge has a queue of its own.

    With a judge that hears answers in order, nothing is handed over: the caller scores all of them together.
    """

    def __init__(self, judge: Any, scored: Callable[[list[Episode]], Coroutine[Any, Any, None]]) -> None:
        self.judge, self.scored = judge, scored
        self.waiting: list[Episode] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.first = 0.0  # when the first of those that wait has ended
        self.timer: asyncio.TimerHandle | None = None

    async def add(self, episode: Episode) -> None:
        if self.judge is None or self.judge.in_order:
            return
        self.waiting.append(episode)
        if self.timer is None:
            self.first = time.perf_counter()
            self.timer = asyncio.get_running_loop().call_later(PAUSE, self._hand_over)
        elif time.perf_counter() - self.first > PAUSE:  # an engine in this process may never wait, so no timer rings
            self._hand_over()
            await asyncio.sleep(0)

    def _hand_over(self) -> None:
        some, self.waiting = self.waiting, []
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if some:
            self.tasks.append(asyncio.create_task(self.scored(some)))

    async def end(self) -> None:
        """Waits until all are scored."""
        self._hand_over()
        await asyncio.gather(*self.tasks)

    async def cancel(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
