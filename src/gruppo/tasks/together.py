"""The worker's loop for a scorer that is `async def`: every answer that arrives is begun at once.

Its parent is `flight.py`, which bounds how many are in hand.
"""

import asyncio
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from gruppo.tasks.child import Parent
from gruppo.tasks.jobs import SLOW
from gruppo.tasks.worker import components, failed, found_answers, unreadable


def serve(scorer: Callable[..., Any], seconds: float, parent: Parent) -> None:
    """Serves requests until the parent ends."""

    async def one(kind: str, item: Any) -> Any:
        if kind != "score":
            return found_answers(scorer, item)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                value = await scorer(*item)
            row = components(value)
        except BaseException as error:  # sys.exit in a scorer is the scorer's failure too
            row = failed(error, __file__)
        late = SLOW.format(seconds, "call was ended", "task.seconds")
        return ({}, "timeout", late) if limit.expired() else row

    async def reply(number: int, body: bytes) -> None:
        try:
            kind, (item,) = pickle.loads(body)
        except Exception as error:
            return parent.send("unread", [number, unreadable(error)])
        parent.send("one", [number, await one(kind, item)])

    async def main() -> None:
        running: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly
        inbox = ThreadPoolExecutor(1)
        while True:
            request = await asyncio.get_running_loop().run_in_executor(inbox, parent.receive)
            task = asyncio.create_task(reply(*pickle.loads(request)))
            running.add(task)
            task.add_done_callback(running.discard)

    asyncio.run(main())
