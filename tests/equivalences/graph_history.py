"""Equivalences of the methods that remember tasks: hapo_history, spo_single."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sides import GRPO, Equivalence, by_episode
from torch import Tensor

from gruppo.data import Batch, Episode, Source, Use, name_hash
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.fields import observe_twice
from gruppo.lab.laws.world import World
from gruppo.methods import method
from gruppo.methods.hapo_history import ShorterThanBefore
from gruppo.stages import Context, Memory, Occupant, StepRecord
from gruppo.stages.curriculum import Uniform
from gruppo.stages.replay import Forget

HAPO, SPO = method("hapo_history"), method("spo_single")


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


def whitened(batch: Batch, above: dict[int, float]) -> dict[str, Tensor]:
    """(x − mean) / (std + 1e-8) over episodes, std with n − 1."""
    mean = math.fsum(above.values()) / len(above)
    std = math.sqrt(math.fsum((x - mean) ** 2 for x in above.values()) / (len(above) - 1))
    return by_episode(batch, {i: (x - mean) / (std + 1e-8) for i, x in above.items()})


@dataclass(frozen=True)
class WhitenedReward(Occupant):
    """The reward itself, whitened over the episodes of the step."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rewards = batch.reward_E.tolist()
        return whitened(batch, {i: rewards[i] for i, judged in enumerate(batch.judged_E.tolist()) if judged})


@dataclass(frozen=True)
class TrackedByLoops(Occupant):
    """SPO's tracker in a dict, one answer after the other; its drift on one last answer at a time."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        known, rewards = ctx.memory.get("by_loops", {}), batch.reward_E.tolist()
        above: dict[int, float] = {}
        for i, task in enumerate(batch.task_E.tolist()):
            if bool(batch.judged_E[i]):
                a, b = known.get(str(task), (0.5, 0.5))
                above[i] = rewards[i] - a / (a + b)
        return whitened(batch, above)

    def observe(self, record: StepRecord, memory: Memory) -> None:
        assert record.ctx is not None
        out = dict(memory.get("by_loops", {}))
        far = {e.task: self.far(record.ctx, e) for e in record.ctx.replay}
        for task in {e.task for e in record.drawn}:
            counted = [e for e in record.drawn if e.task == task and e.use in (Use.LEARN, Use.BASELINE)]
            rewards = [min(max(e.total, 0.0), 1.0) for e in counted if not math.isnan(e.total)]
            if rewards:
                a, b = out.get(str(name_hash(task)), (0.5, 0.5))
                rho = min(max(2 ** (-far.get(task, 0.0) / 0.06), 0.875), 0.96)
                more = math.fsum(rewards)
                out[str(name_hash(task))] = [rho * a + more, rho * b + len(rewards) - more]
        memory["by_loops"] = out

    def far(self, ctx: Context, e: Episode) -> float:
        scored = ctx.read([e])
        gaps = [
            abs(float(scored.logp_policy_N[n]) - float(scored.note_logp_old_N[n]))
            for n, source in enumerate(scored.source_N.tolist())
            if source == Source.POLICY
        ]
        return math.fsum(gaps) / len(gaps)


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
    Equivalence(
        "spo_single_at_first",
        SPO,
        SPO.but(name="whitened reward", curriculum=Uniform(), credit=WhitenedReward(), replay=Forget()),
        "While one half is expected of every task, SPO is the reward whitened over the answers of a step.",
    ),
    Equivalence(
        "spo_single_by_loops",
        SPO,
        SPO.but(name="spo_single, by loops", credit=TrackedByLoops()),
        "SPO (arXiv:2509.13232): values tracked by task, forgotten by the drift of the policy on the last answer.",
        before=a_past,
    ),
]
