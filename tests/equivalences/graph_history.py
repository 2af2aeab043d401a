"""Equivalences of the methods that remember tasks: hapo_history, spo_single."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sides import GRPO, Equivalence

from gruppo.data import Episode, Source, Use
from gruppo.lab.fields import observe_twice
from gruppo.lab.world import World, random_episodes
from gruppo.methods import method
from gruppo.methods.hapo_history import ShorterThanBefore
from gruppo.stages import Context, Memory, Occupant, StepRecord

HAPO = method("hapo_history")


def a_past(world: World) -> None:
    """Two steps on other answers to the same tasks."""
    observe_twice(world, random_episodes(world.seed + 1, groups=4))


@dataclass(frozen=True)
class ShorterByLoops(Occupant):
    """HAPO's reward, one answer after the other, with its history in a dict."""

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> dict[str, Any]:
        out: list[float] = []
        for e in episodes:
            written = sum(int(s) == Source.POLICY for q in e.sequences for s in q.source)
            h = ctx.memory.get("history", {}).get(e.task)
            if h is None or not written:
                out.append(0.0)
                continue
            f = -1.0 if written >= 2 * h else math.cos(written / h * math.pi / 2)
            out.append(max(-0.7, f) if e.reward.get("task", 0.0) > 0 else min(0.0, f))
        return {"length": out}

    def observe(self, record: StepRecord, memory: Memory) -> None:
        history = dict(memory.get("history", {}))
        for e in record.drawn:
            counts = e.status.judged and e.use in (Use.LEARN, Use.BASELINE) and e.source == Source.POLICY
            if counts and e.reward.get("task", 0.0) > 0:
                history[e.task] = min(history.get(e.task, math.inf), e.tokens)
        memory["history"] = history


GRAPH: list[Equivalence] = [
    Equivalence(
        "hapo_history_by_loops",
        HAPO,
        GRPO.but(name="grpo, length against history, by loops", reward=ShorterByLoops()),
        "HAPO (arXiv:2505.11225): GRPO on the sum of correctness and the cosine of the length against the history.",
        before=a_past,
    ),
    Equivalence(
        "hapo_history_without_weight",
        HAPO.but(name="hapo_history, w = 0", reward=(ShorterThanBefore(length_coef=0.0),)),
        GRPO,
        "Without a weight the length does not count, whatever was seen before.",
        before=a_past,
    ),
    Equivalence(
        "hapo_history_at_first",
        HAPO,
        GRPO.but(name="grpo, before any history"),
        "In the first epoch no task has a history, and HAPO is GRPO.",
    ),
]
