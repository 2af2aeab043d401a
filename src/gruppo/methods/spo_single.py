"""SPO: Single-stream Policy Optimization (Xu and Ding 2025, arXiv:2509.13232).

    v_q = a_q / (a_q + b_q),      A = R − v_q,      Â = (A − mean) / (std + 1e-8) over the answers of the step
    D   = mean_t |log π_then − log π_now| on the last answer to q,      ρ = clip( 2^(−D / 0.06), 0.875, 0.96 )
    a_q ← ρ a_q + R,      b_q ← ρ b_q + 1 − R                         after the step; a = b = 0.5 at first
    q ~ √( v_q (1 − v_q) ) + 0.05,      without replacement

Differs from GRPO: one answer per prompt (samples=1). The expected reward of a task is tracked over steps, and its past
is discounted the more, the more the policy has changed since it last answered the task. Tasks that are right half of
the time are drawn most often. Clips 0.2 and 0.28, dual clip 10, mean over tokens, no KL. At a first visit D = 0, so ρ =
0.96. Several answers to one task in a step are discounted once and then summed. Tasks must recur, and rewards outside 0
to 1 are refused.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Source, Use, gather, name_hash, segment
from gruppo.methods.grpo import GRPO
from gruppo.pieces.advantage import z_score
from gruppo.stages import Ask, Context, Memory, Occupant, StepRecord, setting
from gruppo.stages.credit import to_tokens
from gruppo.stages.curriculum import asked, weighted
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.requires import InRoom, RecurringTasks
from gruppo.stages.tables import Table, by_key
from gruppo.stages.update import Passes

TRACKER = "tracker"  # by task: a, b, and the index of the task


def value(tracker: Table, keys: Tensor) -> Tensor:
    """The expected share of right answers to each task."""
    a, b = tracker.look(keys, "a", 0.5), tracker.look(keys, "b", 0.5)
    return a / (a + b)


@dataclass(frozen=True)
class Tracked(Occupant):
    """Reward minus the task's tracked value, whitened over the answers of the step; also writes `drift_E`.

    drift_half           drift D that halves the weight of the past
    keep_low, keep_high  bounds on that weight, ρ
    """

    drift_half: float = setting(0.06, above=0, witness=10.0)
    keep_low: float = setting(0.875, low=0, high=1, witness=0.1)
    keep_high: float = setting(0.96, low=0, high=1, witness=0.9)
    eps: float = setting(1e-8, low=0, witness=1.0)
    writes = ("adv_N", "drift_E")
    ignores = ("shift",)
    requires = (RecurringTasks(),)

    def wrong(self) -> str:
        return "" if self.keep_low <= self.keep_high else (
            f"keep_low={self.keep_low}, keep_high={self.keep_high}: no weight of the past lies between these "
            "bounds. Use keep_low <= keep_high."
        )  # fmt: skip

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        above_E = batch.reward_E - value(Table.of(ctx.memory, TRACKER), batch.task_E).to(batch.reward_E)
        step = segment.one_part(batch.reward_E)
        adv_E = z_score(above_E, step, where=batch.judged_E, eps=self.eps)
        return {**to_tokens(batch, adv_E), "drift_E": drift(ctx, batch).to(adv_E)}

    def unfit(self, batch: Batch) -> str:
        reward = batch.reward_E[batch.judged_E]
        if not bool(((reward < 0) | (reward > 1)).any()):
            return ""
        low, high = reward.aminmax()
        return f"rewards reach from {low:g} to {high:g}, but the tracked value is a share of right answers. Use 0 to 1"

    def observe(self, record: StepRecord, memory: Memory) -> None:
        drawn = [e for e in record.drawn if e.use <= Use.BASELINE and not math.isnan(e.total)]
        keys, tasks = by_key(torch.tensor([name_hash(e.task) for e in drawn], dtype=torch.int64))
        reward = torch.tensor([e.total for e in drawn], dtype=torch.float64).clamp(0.0, 1.0)
        index = torch.tensor([e.index for e in drawn], dtype=torch.float64)
        tracker, far = Table.of(memory, TRACKER), _by_task(record.batch, "drift_E").look(keys, "drift_E", 0.0)
        keep = torch.exp2(-far / self.drift_half).clamp(self.keep_low, self.keep_high)
        a = keep * tracker.look(keys, "a", 0.5) + gather(reward, tasks, "sum")
        b = keep * tracker.look(keys, "b", 0.5) + gather(1 - reward, tasks, "sum")
        memory[TRACKER] = tracker.put(keys, a=a, b=b, index=gather(index, tasks, "max")).plain


def drift(ctx: Context, batch: Batch) -> Tensor:
    """Mean |log π_then − log π_now| over the last answer to each episode's task; 0 if there is none."""
    wanted = set(batch.task_E.tolist())
    last = [e for e in ctx.replay if name_hash(e.task) in wanted]
    if not last:
        return torch.zeros(batch.size("E"))
    past = ctx.read(last)
    mine = (past.source_N == Source.POLICY) & ~past.note_logp_old_N.isnan()
    gap_E = past.gather((past.logp_policy_N - past.note_logp_old_N).abs(), "N", "E", "mean", where=mine)
    return _by_task(past.with_columns(drift_E=gap_E), "drift_E").look(batch.task_E, "drift_E", 0.0)


def _by_task(batch: Batch | None, column: str) -> Table:
    if batch is None:
        return Table()
    keys, tasks = by_key(batch.task_E)
    return Table().put(keys, **{column: gather(batch.columns[column], tasks, "mean")})


@dataclass(frozen=True)
class ByTracker(Occupant):
    """Draw tasks in proportion to √(v (1 − v)) + least_weight, v the tracked value; v = 0.5 for an unseen task."""

    least_weight: float = setting(0.05, low=0, witness=5.0)
    requires = (InRoom("credit", ("tracked",)),)

    def __call__(self, ctx: Context, tasks: Any) -> list[Ask]:
        weight_T = self.weights(Table.of(ctx.memory, TRACKER), len(tasks))
        return asked(ctx, tasks, weighted(ctx, weight_T, ctx.prompts, TRACKER, replace=ctx.prompts > len(tasks)))

    def weights(self, tracker: Table, size: int) -> Tensor:
        index, v = tracker.look(tracker.key_T, "index").long(), value(tracker, tracker.key_T)
        there = (index >= 0) & (index < size)
        value_T = torch.full((size,), 0.5, dtype=torch.float64).index_copy(0, index[there], v[there])
        return (value_T * (1 - value_T)).sqrt() + self.least_weight


@dataclass(frozen=True)
class LastOfTask(Occupant):
    """Keeps the last answer to every task, to measure drift; it is not learned again."""

    joins = False
    proximal = "now"
    credited = "now"

    def put(self, ctx: Context, store: list[Episode], episodes: Sequence[Episode]) -> list[Episode]:
        fresh = [e for e in episodes if e.status.judged and e.source == Source.POLICY]
        return list({e.task: e for e in (*store, *fresh)}.values())

    def get(self, ctx: Context, store: Sequence[Episode]) -> list[Episode]:
        return list(store)


SPO_SINGLE = GRPO.but(
    name="spo_single",
    paper="arXiv:2509.13232",
    checked=(
        "Compared with verl-recipe, spo/spo_ray_trainer.py, _get_spo_rho and fit. π_then and π_now are the "
        "policies that sampled the two answers; the code reads both after the updates of their steps, which lie as "
        "many updates apart. Of several answers to one task in a step the code keeps the reward of one; here ρ is "
        "applied once and R is summed. Their start from eight answers to every task before the run is left out."
    ),
    confidence="code",
    curriculum=ByTracker(),
    credit=Tracked(),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.28, clip_dual=10.0, mean="token"),
    penalties=(),
    update=Passes(epochs=1, minibatches=4),
    replay=LastOfTask(),
    together=("curriculum", "credit", "replay"),
)
