"""Calls of an engine: who waits for which requests."""

import asyncio
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np

from gruppo.engines.base import Completion, Ints, Request


@dataclass(eq=False)
class Call:
    """One call of `generate` or `ask`: how many of its requests are in flight, and what has ended since it looked."""

    left: int
    ended: deque[tuple[int, Completion]] = field(default_factory=deque[tuple[int, Completion]])
    error: BaseException | None = None
    _woken: "asyncio.Future[None] | None" = None

    def deliver(self, index: int, completion: Completion) -> None:
        self.ended.append((index, completion))
        self._wake()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def next(self) -> tuple[int, Completion]:
        """The completion that ends next. What has ended comes before an error."""
        while not self.ended:
            if self.error is not None:
                raise self.error
            self._woken = asyncio.get_running_loop().create_future()
            await self._woken
        self.left -= 1
        return self.ended.popleft()


@dataclass(eq=False)
class Item:
    """A request on its way."""

    call: Call
    index: int  # in its call
    request: Request
    remember: bool  # it may go on from a parked row, and is parked when it ends
    same: bytes = b""  # equal for requests that begin alike

    @property
    def ids(self) -> Ints:
        return np.asarray(self.request.prefix, np.int64)

    def __post_init__(self) -> None:
        ids = self.ids.tobytes()
        self.same = b"%d %b %b" % (len(self.request.payload), self.request.payload, ids)


def items_of(call: Call, requests: Seq[Request], remember: bool) -> list[Item]:
    return [Item(call, i, r, remember) for i, r in enumerate(requests)]
