"""Scores episodes while others are still played."""

import asyncio
import time
from typing import TYPE_CHECKING

from gruppo.data import Episode
from gruppo.stages.context import Context

if TYPE_CHECKING:
    from gruppo.stages.walk import Walk

PAUSE = 0.005  # seconds between two hand-overs to the judge: each costs as much as many scores


class Scoring:
    """Scores episodes in the background while others are still played. The judge has a queue of its own."""

    def __init__(self, walk: "Walk", ctx: Context) -> None:
        self.walk, self.ctx = walk, ctx
        self.waiting: list[Episode] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.last = 0.0

    async def add(self, episode: Episode) -> None:
        if self.walk.judge is None or self.walk.judge.in_order:
            return
        self.waiting.append(episode)
        if time.perf_counter() - self.last < PAUSE:
            return
        self.last = time.perf_counter()
        self._hand_over()
        await asyncio.sleep(0)  # lets the task run: an engine in this process may never wait

    def _hand_over(self) -> None:
        some, self.waiting = self.waiting, []
        if some:
            self.tasks.append(asyncio.create_task(self.walk.scored(self.ctx, some)))

    async def end(self) -> None:
        self._hand_over()
        await asyncio.gather(*self.tasks)

    async def cancel(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
