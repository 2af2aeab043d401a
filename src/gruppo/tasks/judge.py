"""The judge: scores answers in processes of their own, so that no scorer can hang, crash or garble training.

A failure is a status and never a reward of 0. For a comparison with pebble, see `tests/tasks/test_judge.py`.
"""

import asyncio
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as NotYet
from typing import Any

from gruppo.tasks.base import Scorer, Task, TaskSet
from gruppo.tasks.channel import refuse_inside
from gruppo.tasks.extract import answer_of
from gruppo.tasks.hangs import HUNG
from gruppo.tasks.imports import split_path
from gruppo.tasks.jobs import Job, Limits, Verdict
from gruppo.tasks.pool import Pool
from gruppo.tasks.settings import TaskConfig

__all__ = ["Judge", "Verdict", "judge_of"]

PATIENCE = 0.25  # seconds that answers wait before more workers are started
SLOW = 20.0  # seconds of waiting for a scorer that lives before the user is told, then ever more rarely
SILENCE = 30.0  # seconds without a verdict, or until a scorer is loaded, before the user is told


def _to_stderr(sentence: str) -> None:
    print(sentence, file=sys.stderr)


class Judge:
    """Scores answers with the scorer at an import path, each within `seconds`.

    A scorer is `(task, text) -> number or {name: number}`, or batched, `(tasks, texts) -> [...]`; a plain number is
    the component "task". Either may be `async def`. A class or a factory is called once with the arguments of a
    `Scorer`, and returns such a function, which may keep state.

    The first worker process starts with the first call, or with `start()`. A function runs in up to `workers`
    processes (0: one per core, at most 8), which are started when answers have to wait. One that is `async def` judges
    up to `concurrency` answers at once in each of them (0 workers: in one). A batched scorer, and one that may keep
    state, has one worker, which sees the answers in the order of the calls. When an answer takes too long, its worker
    is killed with everything it started, and a new one continues without the state of the old one. A batched call has
    `call_seconds` (0: `seconds` for each of its answers). `say` is given sentences for the user.
    """

    def __init__(
        self,
        scorer: str | Scorer,
        seconds: float = 5.0,
        start_seconds: float = 60.0,
        workers: int = 0,
        concurrency: int = 64,
        call_seconds: float = 0.0,
        say: Callable[[str], None] = _to_stderr,
    ) -> None:
        given = scorer if isinstance(scorer, Scorer) else Scorer(scorer)
        where, name = split_path(given.path)
        self.scorer, self.seconds, self.say = f"{where}:{name}", seconds, say
        limits = Limits(seconds, start_seconds, workers, concurrency, call_seconds)
        self._pool = Pool(self.scorer, dict(given.args), limits)
        self._slow = Slow(self._pool)
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
        done, quiet = self._pool.done, Quiet(self)
        self._slow.begin(len(items))
        job = self._pool.submit(kind, items)
        reply = asyncio.wrap_future(job.future)
        try:
            while not (await asyncio.wait({reply}, timeout=PATIENCE))[0]:
                done = self._pool.grow(done)
                quiet.look(job)
                self._slow.look(self.say)
            return reply.result()
        finally:
            self._slow.end()
            job.future.cancel()  # if this task was cancelled, the remaining items are not scored
            quiet.tell()

    def start(self) -> "Judge":
        """Starts the first worker now, and waits for it; a ValueError says why the scorer cannot be loaded."""
        refuse_inside()
        job, quiet = self._pool.submit("start", []), Quiet(self)
        while True:
            try:
                job.future.result(PATIENCE)
                return self
            except NotYet:
                if job.future.done():  # the scorer's own error
                    raise
                quiet.look(job)

    def close(self) -> None:
        """Ends the workers. A later call of `score` starts new ones."""
        self._pool.close()

    def __enter__(self) -> "Judge":
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()


class Quiet:
    """Tells the user what a call waits for: hangs at once, and anything else after `SILENCE`, then ever more rarely."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.pool = judge, judge._pool
        self.since, self.wait, self.done = time.monotonic(), SILENCE, judge._pool.done

    def look(self, job: Job) -> None:
        self.tell()
        if self.pool.done != self.done:
            self.since, self.wait, self.done = time.monotonic(), SILENCE, self.pool.done
        spent = time.monotonic() - self.since
        if spent < self.wait:
            return
        self.wait *= 2
        limits = self.pool.limits
        if not self.pool.loaded:
            limit = f"task.start_seconds={limits.start_seconds:g}"
            self.judge.say(f"{self.judge.scorer} has been loading for {spent:.0f} s ({limit})")
        else:
            each = (
                f"task.call_seconds={limits.call_seconds:g}"
                if limits.call_seconds
                else f"task.seconds={limits.seconds:g}"
            )
            who = "1 answer has" if job.missing == 1 else f"{job.missing} answers have"
            self.judge.say(f"{who} waited {spent:.0f} s for the scorer ({each})")

    def tell(self) -> None:
        notes = self.pool.hangs.notes
        while notes:
            self.judge.say(notes.pop(0))


class Slow:
    """Tells of a scorer that lives, but is what everything waits for. Calls that overlap are one wait."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.wait = pool, SLOW
        self.calls = self.asked = self.done = self.hung = 0
        self.since = 0.0

    def begin(self, items: int) -> None:
        if not self.calls:
            self.since, self.done, self.asked = time.monotonic(), self.pool.done, 0
            self.hung = self.pool.hung
        self.calls += 1
        self.asked += items

    def end(self) -> None:
        self.calls -= 1

    def look(self, say: Callable[[str], None]) -> None:
        spent, done = time.monotonic() - self.since, self.pool.done - self.done
        if spent < self.wait or not done:  # without any verdict, `Quiet` says so
            return
        self.wait *= 2
        lanes, hung = len(self.pool._lanes), self.pool.hung - self.hung
        by = f"{lanes} processes" if lanes > 1 else "one process"
        if judged := done - hung:
            found = f"{judged} of {self.asked} answers are judged after {spent:.0f} s, "
            found += f"one every {spent / judged:.2g} s in {by}" + (f", and {hung} have hung" if hung else "")
        else:
            found = f"{hung} of {self.asked} answers have hung after {spent:.0f} s in {by}, and none is judged"
        seconds = self.pool.limits.seconds
        remedy = "More of them at once: task.workers, or an `async def` that waits (docs/rewards.md)."
        if 2 * hung * seconds > spent * lanes or not judged:  # most of the time goes there
            remedy = f"{HUNG}; if it is only slow, raise task.seconds ({seconds:g} now)."
        say(f"waiting for the reward: {found}. {remedy}")


class NoJudge:
    """For tasks that an environment judges: whatever it has not paid has no reward."""

    scorer, in_order, restarts = "", False, 0

    def start(self) -> "NoJudge":
        return self

    def close(self) -> None:
        """There is nothing to end."""

    async def score(self, items: Sequence[tuple[Task, str]]) -> list[Verdict]:
        error = "the environment paid no reward called `task`. Its last `Seen` must have one, or outcomes of all seats."
        return [Verdict({}, "env_error", error) for _ in items]

    async def answers(self, groups: Sequence[Sequence[tuple[Task, str]]]) -> list[list[str]]:
        """What was done, as it was written."""
        return [[text for _, text in group] for group in groups]


def judge_of(tasks: TaskSet, config: TaskConfig, say: Callable[[str], None] = _to_stderr) -> "Judge | NoJudge":
    """The judge of a task set, with the limits of the settings."""
    if not str(tasks.scorer):
        return NoJudge()
    c = config
    return Judge(tasks.scorer, c.seconds, c.start_seconds, c.workers, c.concurrency, c.call_seconds, say)
