"""Scoring in actors of Ray: the judge on the other side of a call, with its processes on other machines.

What a judge that died had not answered is scored again by its replacement. A scorer that keeps state begins without it,
as it does in one process when an answer hangs.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gruppo.scale.cluster import RESTARTED, Cluster, answered, at_home, told
from gruppo.tasks.base import Scorer
from gruppo.tasks.jobs import Verdict
from gruppo.tasks.judge import Judge, NoJudge
from gruppo.tasks.settings import TaskConfig

REMEDY = "Look at the scorer, and at the memory of that machine."


class JudgeActor:
    """The actor."""

    def __init__(self, here: Mapping[str, Any], scorer: Scorer, c: TaskConfig) -> None:
        at_home(here)
        self.judge = Judge(scorer, c.seconds, c.start_seconds, c.workers, c.concurrency, c.call_seconds)

    async def start(self) -> tuple[bool, int]:
        """Whether the order of the answers matters, and its process."""
        await asyncio.get_running_loop().run_in_executor(None, self.judge.start)
        return self.judge.in_order, os.getpid()

    async def judged(self, verb: str, items: Sequence[Any]) -> tuple[list[Any], int]:
        found = await getattr(self.judge, verb)(items)
        return found, os.getpid()


class Judges:
    """The judge of a run whose judges are actors: see `Judge`."""

    def __init__(self, cluster: Cluster, scorer: Scorer, config: TaskConfig, say: Callable[[str], None]) -> None:
        self.ray, self.say, self.scorer = cluster.ray, say, str(scorer)
        count = cluster.config.scale.judges
        self.actors = [
            cluster.actor(f"judge {i}", JudgeActor, cluster.here, scorer, config, **RESTARTED) for i in range(count)
        ]
        self.in_order, self.restarts = True, 0
        self.processes: list[int] = []

    def start(self) -> "Judges":
        try:
            found = self.ray.get([actor.start.remote() for actor in self.actors])
        except self.ray.exceptions.RayError as error:
            raise told(error, "a judge", REMEDY) from error
        self.in_order, self.processes = found[0][0], [process for _, process in found]
        if self.in_order and len(self.actors) > 1:
            self.say(
                f"warning: {self.scorer} is batched or may keep state, so one judge hears all answers, in their order, "
                f"and {len(self.actors) - 1} of scale.judges={len(self.actors)} have nothing to do. Use scale.judges=1."
            )
        return self

    def close(self) -> None:
        """The actors end with the cluster of the run."""

    async def score(self, items: Sequence[tuple[Any, str]]) -> list[Verdict]:
        return await self._all("score", items)

    async def answers(self, groups: Sequence[Sequence[tuple[Any, str]]]) -> list[list[str]]:
        return await self._all("answers", groups)

    async def _all(self, verb: str, items: Sequence[Any]) -> list[Any]:
        """Each judge has a part of the items, as many as the others."""
        n = 1 if self.in_order else min(len(self.actors), len(items))
        shares = [list(items[len(items) * i // n : len(items) * (i + 1) // n]) for i in range(n)] if items else []
        found = await asyncio.gather(*(self._ask(i, verb, share) for i, share in enumerate(shares)))
        return [reply for replies in found for reply in replies]

    async def _ask(self, i: int, verb: str, items: list[Any]) -> list[Any]:
        asked = self.actors[i].judged.remote(verb, items)
        found, process = await answered(self.ray, asked, f"judge {i}", REMEDY)
        if process != self.processes[i]:
            self.processes[i] = process
            self.restarts += 1
            state = "; what its scorer may have kept is lost" if self.in_order else ""
            self.say(f"judge {i} died and was replaced; its answers were scored again{state}")
        return found


def judges_of(cluster: Cluster, run: Any, here: Judge | NoJudge) -> Judges | NoJudge:
    """In place of a judge that has not started."""
    if isinstance(here, NoJudge):
        run.warn(f"scale.judges={run.config.scale.judges}: an environment judges these tasks, so judges do nothing")
        return here
    given = run.tasks.scorer if isinstance(run.tasks.scorer, Scorer) else Scorer(run.tasks.scorer)
    return Judges(cluster, Scorer(here.scorer, given.args), run.config.task, run.say)
