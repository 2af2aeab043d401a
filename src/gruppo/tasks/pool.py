"""The worker processes of a judge, each served by a thread. They share a queue of calls.

A worker gets as many items at once as it can probably judge in 50 ms, and hands back those it has not begun after 100
ms. So a fast scorer needs few messages, and items do not wait behind slow ones while another worker is free.
"""

import os
import pickle
import threading
import time
from collections.abc import Sequence
from typing import Any

from gruppo.tasks.channel import INSIDE, Channel, Died, Hung
from gruppo.tasks.flight import Flight, died, unsent
from gruppo.tasks.hangs import Hangs, timed_out
from gruppo.tasks.jobs import SLOW, Job, Limits, Part, Verdict, closed

__all__ = ["Limits", "Pool", "Verdict"]

MOST = 8  # workers, if their number is automatic
GATHER = 0.0005  # seconds between two reads of replies
MESSAGE = 0.05  # seconds of work that a message to a worker should hold
GROWTH = 4  # a message has at most this many times the items of the last one


class Pool:
    """The queue of jobs and the lanes that serve it. The first job starts one lane; `grow` adds others."""

    def __init__(self, scorer: str, args: dict[str, Any], limits: Limits) -> None:
        self.scorer, self.args, self.limits = scorer, args, limits
        self.hangs = Hangs(limits.seconds)
        self.most = 1  # lanes; the first worker finds out whether the scorer can run in several
        self.loaded = self.batched = self.together = False
        self.in_order = True  # until the first worker says that any order will do
        self.lost = self.done = self.hung = 0  # workers, items, and those that hung
        self._jobs: list[Job] = []  # those with waiting items
        self._lanes: list[Lane] = []
        self._changed = threading.Condition()

    def submit(self, kind: str, items: Sequence[Any]) -> Job:
        job = Job(kind, items)
        with self._changed:
            self._jobs.append(job)
            if not self._lanes:
                self._add_lane()
            self._changed.notify_all()
            for lane in self._lanes:
                lane.wake()
        return job

    def grow(self, before: int) -> int:
        """Adds lanes if the waiting items need more time than the items since `done` was `before`; returns `done`."""
        with self._changed:
            waiting = sum(len(job.waiting) for job in self._jobs)
            if waiting > self.done - before:
                for _ in range(min(self.most - len(self._lanes), waiting)):
                    self._add_lane()
            return self.done

    def close(self) -> None:
        """Ends the lanes; calls that are still waiting raise."""
        with self._changed:
            lanes, self._lanes = self._lanes, []
            jobs, self._jobs = self._jobs, []
            self.in_order = True  # the next worker may find another scorer in the file
            for job in jobs:
                job.fail(closed())
            for lane in lanes:
                lane.ended = True
            self._changed.notify_all()
        for lane in lanes:
            lane.end()

    def _add_lane(self) -> None:
        lane = Lane(self)
        self._lanes.append(lane)
        lane.start()

    # The lanes call the following.

    def wait(self, lane: "Lane") -> bool:
        """Waits for items; False once the lane has to end."""
        with self._changed:
            while not self._jobs and not lane.ended:
                self._changed.wait()
            return not lane.ended

    def take(self, lane: "Lane") -> Part | None:
        """The next items of the first job, for a batched scorer all of them or its share; None if there are none."""
        with self._changed:
            while self._jobs and not lane.ended:
                job = self._jobs[0]
                if job.future.done():  # cancelled
                    self._jobs.pop(0)
                    continue
                most = -(-len(job.items) // self.most) if self.batched and job.kind == "score" else lane.size
                if job.kind == "score" and not self.in_order:
                    self.hangs.prefer_others(job)
                indices = [job.waiting.popleft() for _ in range(min(most, len(job.waiting)))]
                if not job.waiting:
                    self._jobs.pop(0)
                if indices:
                    return Part(job, indices)
                job.reply([], [])  # a call that only waited for the worker to start
            return None

    def finish(self, lane: "Lane", part: Part, replies: Sequence[Any]) -> None:
        """Stores the replies to the first items of a part; the others go back to the front of the queue."""
        job, rest = part.job, part.indices[len(replies) :]
        with self._changed:
            self.done += len(replies)
            if job.kind == "score":
                self.hung += sum(map(timed_out, replies))
                calls = 1 if self.batched else len(replies)
                self.hangs.count(part, replies[:calls], sum(one.at_once for one in self._lanes))
            job.reply(part.indices, replies)
            if rest and lane.ended:
                job.fail(closed())
            elif rest:
                if job not in self._jobs:
                    self._jobs.insert(0, job)
                job.waiting.extendleft(reversed(rest))
                self._changed.notify_all()
            if self.hangs.dead:
                self._give_up()

    def _give_up(self) -> None:
        """The answers that wait are not judged. The next call tries again, with those that its lanes take at once."""
        for job in [j for j in self._jobs if j.kind == "score"]:
            self._jobs.remove(job)
            job.give_up(self.hangs.verdict)

    def ready(self, lane: "Lane", batched: bool, together: bool, stateless: bool, alone: bool) -> None:
        """A lane has loaded the scorer."""
        usual = 1 if together else min(MOST, _cores())  # one process can wait for many answers
        with self._changed:
            self.batched, self.together, self.loaded, self.in_order = batched, together, True, not stateless
            if self._lanes == [lane]:
                self.most = self.limits.workers or usual if stateless and not alone else 1

    def refuse(self, lane: "Lane", error: Exception) -> None:
        """A lane cannot load the scorer. It ends if there are others; the last one fails all jobs instead."""
        with self._changed:
            if len(self._lanes) > 1 and not lane.ended:
                lane.ended = True
                self._lanes.remove(lane)
                self.most = len(self._lanes)
            if lane.ended:
                return
            said = Verdict({}, "env_error", f"The scorer's process could not be started again: {error}")
            jobs, self._jobs = self._jobs, []
            for job in jobs:
                if self.loaded:
                    job.give_up(said)
                else:
                    job.fail(error)

    def lost_by(self, lane: "Lane") -> None:
        """A lane has lost its worker."""
        with self._changed:
            self.lost += not lane.ended


class Lane(threading.Thread):
    """A thread that serves the queue with one worker, which it starts when there is something to do."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(daemon=True, name="judge")
        self.pool = pool
        self.channel: Channel | None = None
        self.ended = False
        self.size = 1  # items in one message
        self.suspects = 0  # items to be judged one at a time, if the scorer is async
        self.unread = 0  # messages in a row that no worker has read

    def run(self) -> None:
        pool = self.pool
        while pool.wait(self):
            try:
                channel = self._ready()
            except Exception as error:
                pool.refuse(self, error)
                continue
            if pool.together:
                Flight(self, channel).run()
            elif part := pool.take(self):
                pool.finish(self, part, self._serve(channel, part))

    @property
    def at_once(self) -> int:
        """Answers that its worker may have in hand."""
        return self.pool.limits.concurrency if self.pool.together and not self.suspects else 1

    def wake(self) -> None:
        """There are new items; a lane whose worker can take more of them is told."""
        channel = self.channel
        if self.pool.together and channel is not None:
            channel.wake()

    def end(self) -> None:
        """Ends the worker and the thread."""
        if self.channel is not None:
            self.channel.close()
        if self.ident is not None and threading.current_thread() is not self:  # a signal may come before it starts
            self.join()

    def _ready(self) -> Channel:
        if self.channel is not None and not self.channel.alive:
            self.lose()
        if self.channel is None:
            self.channel = Channel("gruppo.tasks.worker", {**os.environ, INSIDE: "1"}, gather=GATHER)
            try:
                self._load(self.channel)
            except Exception:
                self.channel.close()
                self.channel = None
                raise
        return self.channel

    def _load(self, channel: Channel) -> None:
        if self.ended:  # `end` may not have seen the channel
            raise closed()
        scorer, seconds = self.pool.scorer, self.pool.limits.start_seconds
        try:
            channel.send(pickle.dumps((scorer, self.pool.args, self.pool.limits.seconds)))
            kind, content = channel.read(seconds)
        except Hung:
            raise ValueError(
                f"{scorer} was not loaded within {seconds:g} s, so nothing can be judged. Raise "
                "task.start_seconds, or let it load less."
            ) from None
        except Died as error:
            raise ValueError(f"{scorer}: the process that loads it died ({error}). stderr may say more.") from None
        if kind == "refused":
            raise ValueError(content)
        self.pool.ready(self, *content)

    def lose(self) -> None:
        """Ends the worker; the next items get a new one."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None
            self.pool.lost_by(self)

    def _serve(self, channel: Channel, part: Part) -> list[Any]:
        """The replies to the first items of a part; the others have to be sent again."""
        try:
            request = part.request()
        except Exception as error:
            return self._unsent(part, unsent(error))
        try:
            channel.send(request)
            kind, content = channel.read(self.pool.limits.start_seconds)
        except (Hung, Died) as error:  # not the fault of an answer, so another worker gets the message
            self.lose()
            self.unread += 1
            return [] if self.unread < 2 else part.failed(f"The scorer's process cannot be reached ({error}).")
        self.unread = 0
        return self._replies(channel, part) if kind == "begun" else self._unsent(part, content)

    def _unsent(self, part: Part, why: str) -> list[Any]:
        """Items that cannot be sent together are sent one by one, so that a bad one does not fail the others."""
        if len(part.indices) > 1 and not self.pool.batched:
            self.size = 1
            return []
        return part.failed(why)

    def _replies(self, channel: Channel, part: Part) -> list[Any]:
        replies: list[Any] = []
        seconds, setting, begun = *self._limit(part), time.monotonic()
        try:
            while len(replies) < len(part.indices):
                kind, content = channel.read(seconds)
                if kind == "rest":
                    break
                replies += content if kind == "all" else [content]
        except (Hung, Died) as error:
            self.lose()
            if self.ended:
                return replies
            status, why = "timeout", SLOW.format(seconds, "scorer was killed", setting)
            if isinstance(error, Died):
                status, why = "env_error", died(error)
            return replies + part.failed(why, status)[: None if self._whole(part) else 1]
        fitting = int(len(replies) * MESSAGE / max(1e-6, time.monotonic() - begun))
        self.size = max(1, min(fitting, GROWTH * max(self.size, len(replies))))
        return replies

    def _whole(self, part: Part) -> bool:
        """Whether the items of a part are judged together."""
        return self.pool.batched and part.job.kind == "score"

    def _limit(self, part: Part) -> tuple[float, str]:
        """Seconds until the next reply, and the setting to raise: a batched call has them for each of its answers."""
        limits = self.pool.limits
        if not self._whole(part):
            return limits.seconds, "task.seconds"
        each = f"task.seconds (now {limits.seconds:g} per answer)"
        return (
            (limits.call_seconds, "task.call_seconds")
            if limits.call_seconds
            else (limits.seconds * len(part.indices), each)
        )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
