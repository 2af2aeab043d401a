"""Calls of an engine: who waits for which requests."""

import asyncio
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from types import TracebackType

import numpy as np

from gruppo.engines.base import Completion, Ints, Request
from gruppo.engines.parked import Entry


@dataclass(eq=False)
class Call:
    """One call of `generate` or `ask`: how many of its requests are in flight, and what has ended since it looked."""

    left: int
    ended: deque[tuple[int, Completion]] = field(default_factory=deque[tuple[int, Completion]])
    error: BaseException | None = None
    _where: TracebackType | None = None
    _woken: "asyncio.Future[None] | None" = None

    def deliver(self, index: int, completion: Completion) -> None:
        self.ended.append((index, completion))
        self._wake()

    def fail(self, error: BaseException) -> None:
        self.error, self._where = error, error.__traceback__
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def next(self) -> tuple[int, Completion]:
        """The completion that ends next. What has ended comes before an error."""
        while not self.ended:
            if self.error is not None:
                raise self.error.with_traceback(self._where)  # others raise the same: theirs is not added to
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
    parent: "Item | None" = None  # the row that it is a fork of
    start: int = 0  # of a fork: its first token, counted in the completion of its parent
    said: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # of a fork: sampled before it
    entry: Entry | None = None  # of a fork: the row up to where it begins
    copies: int = 0  # forks of it and of its forks
    forks: "list[Item]" = field(default_factory=list["Item"])
    done: Completion | None = None  # with its forks, once they are done
    own: Completion | None = None  # without

    @property
    def root(self) -> "Item":
        return self if self.parent is None else self.parent.root

    def restart(self) -> None:
        self.forks, self.done, self.own, self.copies = [], None, None, 0

    def ended(self, completion: Completion) -> "Item | None":
        """The request that is answered with this completion, if nothing of it is in flight any more."""
        if self.parent is None and not self.forks:  # nearly always, and a copy of each takes 4 % of a call of 512
            self.done = completion
            return self
        self.own = replace(completion, start=self.start)
        item: Item = self
        while item.own is not None and all(f.done is not None for f in item.forks):
            item.done = replace(item.own, forks=tuple(f.done for f in item.forks if f.done is not None))
            if item.parent is None:
                return item
            item = item.parent
        return None

    @property
    def ids(self) -> Ints:
        return np.asarray(self.request.prefix, np.int64)

    def __post_init__(self) -> None:
        ids = self.ids.tobytes()
        self.same = b"%d %b %b" % (len(self.request.payload), self.request.payload, ids)


def items_of(call: Call, requests: Seq[Request], remember: bool) -> list[Item]:
    return [Item(call, i, r, remember) for i, r in enumerate(requests)]
