"""Mistakes of the agents' methods that change rewards, selection or the horizon, planted to see the laws catch them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from planted_credit import spoiled
from torch import Tensor

from gruppo.data import Batch, Episode, Status
from gruppo.methods.igpo_gain import JointReturns
from gruppo.methods.loop import UnitClipped
from gruppo.methods.otc import ToolEfficiency
from gruppo.methods.rlvmr import TrajectoryAndTags
from gruppo.methods.scalinginter import Horizon
from gruppo.methods.simpletir import MaskVoid
from gruppo.methods.ufo import MostVaried
from gruppo.pieces import advantage
from gruppo.stages import Ask, Context, Memory, Method, Prompt, Stats, StepRecord, Term
from gruppo.stages.credit import turn_reward
from gruppo.stages.curriculum import Uniform, told
from gruppo.stages.schedule import at
from gruppo.stages.select import share_of


@dataclass(frozen=True)
class TrajectoriesInParts(UnitClipped):
    """LOOP that says a trajectory's ratio could be computed sequence by sequence."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [replace(t, additive=True) for t in super().terms(ctx, batch)]


@dataclass(frozen=True)
class WeighsUp(MaskVoid):
    """SimpleTIR that gives the others the weight of the masked, counted over all that was drawn, failed or not."""

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        keep_N, weight_N = super().tokens(ctx, batch, stats)
        left = batch.gather(keep_N, "N", "E", "any").sum().clamp(min=1)
        return keep_N, weight_N * batch.size("E") / left


@dataclass(frozen=True)
class CallsOfFailures(ToolEfficiency):
    """OTC that takes a rollout that failed for a right one without a call."""

    def observe(self, record: StepRecord, memory: Memory) -> None:
        drawn = [e if e.status.judged else _quick(e) for e in record.drawn]
        super().observe(replace(record, drawn=drawn), memory)


def _quick(e: Episode) -> Episode:
    return replace(e, status=Status.OK, reward={"task": 1.0}, turns=[replace(t, tools=()) for t in e.turns])


@dataclass(frozen=True)
class CallsAtOnce(ToolEfficiency):
    """OTC that remembers while it gives the rewards of the step."""

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        self.observe(StepRecord(0, [], None, {}, None, episodes), ctx.memory)
        return super().__call__(ctx, episodes)


@dataclass(frozen=True)
class TagsOfFailures(TrajectoryAndTags):
    """RLVMR that compares the turns of a tag with those of rollouts that failed, too."""

    def by_tag(self, batch: Batch, judged_K: Tensor) -> Tensor:
        return super().by_tag(batch, torch.ones_like(judged_K))


@dataclass(frozen=True)
class FirstStage(Horizon):
    """ScalingInter-RL that stays in its first stage."""

    def __call__(self, ctx: Context, tasks: Any) -> list[Ask]:
        return told(Uniform()(ctx, tasks), turns=int(at(self.turns, 0, {})))


@dataclass(frozen=True)
class ReturnsOfFailures(JointReturns):
    """IGPO whose mean over turns has those of rollouts that failed in it."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        reward_K = turn_reward(batch)
        z_K = advantage.z_score(reward_K, batch.level("K", "G"), eps=self.eps)
        return {"adv_N": batch.spread(batch.scan(z_K, self.gamma, "K", "E"), "K", "N")}


@dataclass(frozen=True)
class FirstGroups(MostVaried):
    """UFO that learns from the groups that happen to stand first."""

    def episodes(self, ctx: Context, episodes: Sequence[Episode]) -> tuple[list[bool], list[Ask | Prompt]]:
        groups = list(dict.fromkeys(e.group for e in episodes if e.status.judged))
        first = groups[: share_of(self.share, len(groups))]
        return [e.group in first for e in episodes], []


SPOILED: dict[str, tuple[str, Method]] = {
    "loop, trajectories in parts": (
        "micro_batches",
        spoiled("loop", objective=TrajectoriesInParts(unit="trajectory")),
    ),
    "simpletir weighs failures": ("failures", spoiled("simpletir", select=(WeighsUp(),))),
    "otc, calls of failures": ("failures", spoiled("otc", reward=(CallsOfFailures(),))),
    "rlvmr, tags of failures": ("failures", spoiled("rlvmr", credit=TagsOfFailures())),
    "scalinginter, the first stage for ever": ("schedules", spoiled("scalinginter", curriculum=FirstStage())),
    "igpo_gain, turns of failures": ("failures", spoiled("igpo_gain", credit=ReturnsOfFailures())),
    "ufo takes the first groups": ("order", spoiled("ufo", select=(FirstGroups(share=0.5),))),
    "otc, memory in the call": ("memory", spoiled("otc", reward=(CallsAtOnce(),))),
}
RAISES = {"otc, memory in the call"}
