"""The judge: scores answers in processes of their own, so that no scorer can hang, crash or garble training.

A failure is a status and never a reward of 0. For a comparison with pebble, see `tests/tasks/test_judge.py`.
"""

import asyncio
import weakref
from collections.abc import Sequence
from typing import Any

from gruppo.tasks.base import Scorer, Task
from gruppo.tasks.extract import answer_of
from gruppo.tasks.imports import split_path
from gruppo.tasks.pool import Pool, Verdict

__all__ = ["Judge", "Verdict"]

PATIENCE = 0.25  # seconds that answers wait before more workers are started


class Judge:
    """Scores answers with the scorer at an import path, each within `seconds` (a batched scorer: each call).

    A scorer is `(task, text) -> number or {name: number}`, or batched, `(tasks, texts) -> [...]`; a plain number is
    the component "task". A class or a factory is called once with the arguments of a `Scorer`, and returns such a
    function, which may keep state.

    The first worker process starts with the first call, or with `start()`. A function runs in up to `workers`
    processes (0: one per core, at most 8), which are started when answers have to wait. A batched scorer, and one
    that may keep state, has one worker, which sees the answers in the order of the calls. When an answer takes too
    long, its worker is killed with everything it started, and a new one continues without the state of the old one.
    """

    def __init__(
        self, scorer: str | Scorer, seconds: float = 5.0, start_seconds: float = 60.0, workers: int = 0
    ) -> None:
        given = scorer if isinstance(scorer, Scorer) else Scorer(scorer)
        where, name = split_path(given.path)
        for label, value in (("seconds", seconds), ("start_seconds", start_seconds)):
            if not value > 0:
                raise ValueError(f"{label}={value}: every answer would be too late. Use a number above 0.")
        if workers < 0:
            raise ValueError(
                f"task.workers={workers}: there is no such number of processes. Use 0 (automatic) or more."
            )
        self.scorer, self.seconds = f"{where}:{name}", seconds
        self._pool = Pool(self.scorer, dict(given.args), seconds, start_seconds, workers)
        weakref.finalize(self, self._pool.close).atexit = False  # at exit, the processes end by themselves

    @property
    def in_order(self) -> bool:
        """Whether the order of the answers may matter: the scorer is batched or may keep state, or is not loaded."""
        return self._pool.in_order

    @property
    def restarts(self) -> int:
        """How many workers were lost because an answer hung or crashed them, or because they died between calls."""
        return self._pool.lost

    async def score(self, items: Sequence[tuple[Task, str]]) -> list[Verdict]:
        """One verdict for each (task, answer), in their order. Raises only if the scorer was never loaded."""
        rows = await self._all("score", items)
        return [row if isinstance(row, Verdict) else Verdict(*row) for row in rows]

    async def answers(self, groups: Sequence[Sequence[tuple[Task, str]]]) -> list[list[str]]:
        """The answer in each text of each group, "" for none; answers of a group that mean the same are equal.

        The scorer finds them (see `tasks.answers`), within `seconds` per group. If it fails, the text decides.
        """
        rows = await self._all("answers", groups)
        return [
            row if isinstance(row, list) else [answer_of(text) for _, text in group]
            for row, group in zip(rows, groups, strict=True)
        ]

    async def _all(self, kind: str, items: Sequence[Any]) -> list[Any]:
        """The reply to each item, or a Verdict that says why there is none."""
        if not items:
            return []
        done = self._pool.done
        job = self._pool.submit(kind, items)
        reply = asyncio.wrap_future(job.future)
        try:
            while not (await asyncio.wait({reply}, timeout=PATIENCE))[0]:
                done = self._pool.grow(done)
            return reply.result()
        finally:
            job.future.cancel()  # if this task was cancelled, the remaining items are not scored

    def start(self) -> "Judge":
        """Starts the first worker now, and waits for it; a ValueError says why the scorer cannot be loaded."""
        self._pool.submit("start", []).future.result()
        return self

    def close(self) -> None:
        """Ends the workers. A later call of `score` starts new ones."""
        self._pool.close()

    def __enter__(self) -> "Judge":
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()
