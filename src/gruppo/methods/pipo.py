"""PIPO, policy improvement policy optimisation (Wang et al. 2026, arXiv:2604.00860).

    μ_t = mean reward of batch t,     ξ_t = (μ_t − mean of the last K μ) / (their std + eps)
    φ_t = ξ_t if ξ_t ≥ 0, else undo · ξ_t

    1. retrospective:   a step on batch t − 1 with advantages φ_t · a_i,   a_i = G A_i / Σ_j |A_j|   in its group
    2. forward:         the method's own step on batch t

Differs from GRPO: if rewards rose, the previous step is taken further; if they fell, part of it is undone. The
retrospective step maximises the surrogate alone, without penalties, with importance ratios to the policy that batch t −
1 was learned under. It scales the advantage, not the objective: min(r A, clip(r) A) with A negated is not its negative.
log π_old of batch t is computed before the retrospective step, which is skipped until K means are known. ξ is clipped
to ±3. Prompts differ from batch to batch, which adds noise to ξ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch

from gruppo.data import Batch, Episode
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Memory, Occupant, StepRecord, setting
from gruppo.stages.replay import as_learned
from gruppo.stages.requires import InRoom
from gruppo.stages.update import Passes


def improvement(mean: float, past: Sequence[float], undo: float, limit: float, eps: float = 1e-8) -> float:
    """φ of the standardised improvement ξ over the past means; ξ is clipped to ±limit."""
    xi = (mean - fmean(past)) / (stdev(past) + eps)
    xi = min(max(xi, -limit), limit)
    return xi if xi >= 0 else undo * xi


def attributed(batch: Batch, factor: float) -> Batch:
    """The batch with advantages scaled so that Σ_i |A_i| of a group is its size G, times `factor`."""
    size_E = batch.gather(batch.adv_N.abs(), "N", "E", "mean", where=batch.learn_N)
    judged_E = batch.judged_E
    total_G = batch.gather(size_E, "E", "G", "sum", where=judged_E)
    count_G = batch.gather(judged_E, "E", "G", "count", where=judged_E).to(total_G.dtype)
    scale_G = torch.where(total_G > 0, count_G / total_G.clamp(min=1e-30), torch.zeros_like(total_G))
    return batch.with_columns(adv_N=factor * batch.spread(scale_G, "G", "N") * batch.adv_N)


@dataclass(frozen=True)
class LookBack(Occupant):
    """Extend or undo the previous step by how much rewards rose since, then pass over the batch.

    window    K, the number of past batch means
    undo      factor on a negative ξ
    limit     bound on |ξ|
    lr_scale  learning rate of the retrospective step, relative to the policy's
    """

    window: int = setting(8, low=2, witness=3)
    undo: float = setting(0.1, low=0, witness=[0.9, 0.5])
    limit: float = setting(3.0, low=0, witness=0.01)
    lr_scale: float = setting(1.0, low=0, witness=0.1)
    epochs: int = setting(1, low=1, witness=2)
    minibatches: int = setting(1, low=1, witness=2)
    reads = ("adv_N",)
    requires = (InRoom("replay", ("last_batch",)),)

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        past, now = ctx.memory.get("batch_means", []), _mean(batch)
        if len(past) >= self.window and ctx.replay and now is not None:
            factor = improvement(now, past[-self.window :], self.undo, self.limit)
            before = attributed(as_learned(ctx, ctx.replay), factor)
            learner.step("policy", before, lr=self.lr_scale * learner.lr("policy"), penalties=False)
        Passes(self.epochs, self.minibatches)(ctx, learner, batch)

    def observe(self, record: StepRecord, memory: Memory) -> None:
        if record.batch is not None and (now := _mean(record.batch)) is not None:
            memory["batch_means"] = [*memory.get("batch_means", []), now][-self.window :]


def _mean(batch: Batch) -> float | None:
    """μ; None if no episode was judged."""
    fresh_E = batch.judged_E & ~batch.replayed_E
    return float(batch.reward_E[fresh_E].mean()) if bool(fresh_E.any()) else None


@dataclass(frozen=True)
class LastBatch(Occupant):
    """Keeps the previous batch for the update; it does not join the current one."""

    joins = False
    proximal = "stored"
    credited = "stored"

    def put(self, ctx: Context, store: list[Episode], episodes: Sequence[Episode]) -> list[Episode]:
        return list(episodes)

    def get(self, ctx: Context, store: Sequence[Episode]) -> list[Episode]:
        return list(store)


PIPO = GRPO.but(
    name="pipo",
    paper="arXiv:2604.00860",
    checked=(
        "The equations are those of the authors' project page and of three accounts of the paper; K = 8, undo = "
        "0.1 and equal learning rates are what the accounts agree on. The paper itself was not read. The bound of "
        "3 on the size of ξ is ours: short windows have heavy tails."
    ),
    confidence="notes",
    update=LookBack(window=8, undo=0.1, limit=3.0),
    replay=LastBatch(),
    together=("update", "replay"),
)
