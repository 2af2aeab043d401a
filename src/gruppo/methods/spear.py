"""SPEAR, self-imitation with progressive exploration (Qin et al. 2025, arXiv:2509.22601).

    R ← R + μ(s) min(1, 0.1 · turns)                                μ: 1 → 0, a half cosine over 200 steps
    A = R − mean R of the group                                     fresh episodes; those with A > 0 are remembered
    Ã = R − P50 of the group means of all steps so far              remembered episodes; only those with Ã ≥ 0 count
    J = J_clip(fresh, A) + γ(s) J_clip(remembered, Ã)               γ: 0 → 1, a half cosine over 100 steps

Differs from GRPO: an episode that did better than its group is learned from again, as long as it is better than what is
usual by now. J_clip has clips of 0.2 and 0.28, no standard deviation, no KL and a constant length (Dr.BoT), and leaves
out a few random tokens of high covariance of advantage and log π (clip_cov): 0.02 % of the fresh ones with 1 < c < 5, 2
% of the remembered ones with 2 < c < 60. Turns that were cut off are only compared. Remembered episodes keep their log
π_old. The buffer is used whole, once, when it is full, and begins again; `capacity=0` is a quarter of the episodes
of a step. What is older than `max_age` steps is dropped. Answers of one turn have no bonus.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Source, Use, centre
from gruppo.methods.grpo import GRPO
from gruppo.pieces import surrogate
from gruppo.pieces.advantage import z_score
from gruppo.pieces.covariance import left_out
from gruppo.pieces.ratio import ratio
from gruppo.pieces.stop import stop
from gruppo.stages import Context, Memory, Need, Occupant, Sched, Schedule, Stats, StepRecord, Term, Values, setting
from gruppo.stages.credit import COMPARES, to_tokens
from gruppo.stages.objective import NOW, OLD
from gruppo.stages.replay import Credited, Proximal
from gruppo.stages.requires import InRoom
from gruppo.stages.select import WholeTurns

PAST = "group_baselines"  # in memory: mean and standard deviation of every group so far
FEW = {"share": 2e-4, "low": 1.0, "high": 5.0}
WITNESS = {"share": 0.5, "low": -1.0, "high": 5.0}


@dataclass(frozen=True)
class TurnBonus(Occupant):
    """Component `turns`: bonus_coef · min(bonus_most, bonus_per_turn · turns); 0 for an episode of one turn."""

    bonus_coef: Sched = setting(Schedule("cosine(1.0, 0.0, steps=200)"), low=0, witness=0.5)
    bonus_per_turn: float = setting(0.1, low=0, witness=0.3)
    bonus_most: float = setting(1.0, low=0, witness=0.2)

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        turns = np.array([len(e.turns) if len(e.turns) > 1 else 0 for e in episodes])
        return {"turns": ctx.at(self.bonus_coef) * np.minimum(self.bonus_most, self.bonus_per_turn * turns)}


@dataclass(frozen=True)
class GoodOnes(Occupant):
    """Stores episodes with a positive advantage until there are `capacity`, then recalls all of them, once.

    capacity  0: a quarter of the episodes that a step draws
    max_age   age in steps, when recalled, that an episode may have at most
    """

    capacity: int = setting(0, low=0, witness=[9, 30])
    max_age: int = setting(5, low=0, witness=1)
    proximal: Proximal = "stored"
    credited: Credited = "now"
    joins = True
    reads = ("adv_N",)
    requires = (InRoom("credit", ("recalibrated",)),)

    def full(self, ctx: Context, store: Sequence[Episode]) -> bool:
        return len(store) >= (self.capacity or max(ctx.prompts * ctx.samples // 4, 1))

    def put(self, ctx: Context, store: list[Episode], episodes: Sequence[Episode]) -> list[Episode]:
        kept = [] if self.full(ctx, store) else store  # it was used in this step
        fresh = [e for e in episodes if e.status.judged and (e.use, e.source) == (Use.LEARN, Source.POLICY)]
        good = [e for e in fresh if "adv" in e.notes and e.notes["adv"].values.mean() > 0]
        return [e for e in (*kept, *good) if ctx.step - e.step < self.max_age]

    def get(self, ctx: Context, store: Sequence[Episode]) -> list[Episode]:
        return list(store) if self.full(ctx, store) else []


@dataclass(frozen=True)
class Recalibrated(Occupant):
    """Fresh: R − mean of the group. Remembered: R − median of the means of the last `groups` groups; 0 without any.

    normalise  none; std: divided by the standard deviation of the group, or by the median of those of the last groups
    """

    groups: int = setting(10240, low=1, witness=[1, 3])
    normalise: Literal["none", "std"] = "none"
    writes = ("adv_N",)
    ignores = ("shift",)
    requires = (COMPARES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        fresh_E, level = batch.judged_E & ~batch.replayed_E, batch.level("E", "G")
        now_E = (
            centre(batch.reward_E, level, where=fresh_E)
            if self.normalise == "none"
            else z_score(batch.reward_E, level, where=fresh_E)
        )
        past = ctx.memory.get(PAST)
        if past is None:
            return to_tokens(batch, now_E)
        mean, std = torch.quantile(past.double(), 0.5, 0).tolist()
        then_E = (batch.reward_E - mean) / (1.0 if self.normalise == "none" else std + 1e-6)
        return to_tokens(batch, torch.where(batch.replayed_E & batch.judged_E, then_E, now_E))

    def observe(self, record: StepRecord, memory: Memory) -> None:
        if (b := record.batch) is None:
            return
        fresh_E = b.judged_E & ~b.replayed_E
        some_G = b.gather(fresh_E, "E", "G", "any")
        mean_G, std_G = (b.gather(b.reward_E, "E", "G", how, where=fresh_E)[some_G] for how in ("mean", "std"))
        new_G2 = torch.stack([mean_G, std_G], 1).double().cpu()
        memory[PAST] = torch.cat([memory.get(PAST, new_G2[:0]), new_G2])[-self.groups :]


@dataclass(frozen=True)
class NowAndThen(Occupant):
    """The clipped surrogate over fresh tokens, and `replay_coef` times that over remembered ones with A ≥ 0.

    left_out, replay_left_out  each is without a random `share` of its tokens, drawn from those with a covariance
                               between `low` and `high`; a share of 0: with all
    """

    clip_low: float = setting(0.2, low=0, high=1, witness=0.6)
    clip_high: float = setting(0.28, low=0, witness=0.9)
    mean: Any = setting("sequence_sum/max_tokens", above=0)
    replay_coef: Sched = setting(Schedule("cosine(0.0, 1.0, steps=100)"), low=0, witness=0.5)
    left_out: Mapping[str, float] = setting(FEW, witness=WITNESS)
    replay_left_out: Mapping[str, float] = setting({"share": 0.02, "low": 2.0, "high": 60.0}, witness=WITNESS)
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def wrong(self) -> str:
        for name in ("left_out", "replay_left_out"):
            if set(value := dict(getattr(self, name))) != set(FEW):
                return (
                    f"{name}={value}: it is not known which tokens to leave out. Give a share, a low and a high bound."
                )
        return ""

    def parts(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Fresh tokens, and remembered ones that are better than usual."""
        past_N = batch.spread(batch.replayed_E, "E", "N")
        return batch.learn_N & ~past_N, batch.learn_N & past_N & (batch.adv_N >= 0)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        fresh_N, past_N = self.parts(batch)
        return [
            Term("policy", fresh_N, self.mean, additive=False),
            Term("self_imitation", past_N, self.mean, coef=ctx.at(self.replay_coef), additive=False),
            Term("clip_fraction", fresh_N | past_N, coef=0.0),
            Term("singled_out", fresh_N | past_N, coef=0.0, additive=False),
        ]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        adv_N, r_N, now_N = batch.adv_N, ratio(stats.logp_N, batch.logp_old_N), stop(stats.logp_N)
        clip_N = surrogate.clip_fraction(stop(r_N), adv_N, self.clip_low, self.clip_high)
        noise_N, (fresh_N, past_N) = ctx.uniform("spear", batch.uid_N), self.parts(batch)
        parts = zip((fresh_N, past_N), (self.left_out, self.replay_left_out), strict=True)
        out = [left_out(adv_N, now_N, where, clip_N == 0, noise_N, **band) for where, band in parts]
        out_N = (out[0] | out[1]).to(r_N.dtype)
        value_N = batch.weight_N * surrogate.clipped(r_N, adv_N, self.clip_low, self.clip_high) * (1.0 - out_N)
        return {"policy": value_N, "self_imitation": value_N, "clip_fraction": clip_N, "singled_out": out_N}


SPEAR = GRPO.but(
    name="spear",
    paper="arXiv:2509.22601",
    checked=(
        "Compared with TencentYoutuResearch/SPEAR, verl-agent: verl/trainer/ppo/ray_trainer_hybrid.py "
        "(TrajectoryBufferBatch), agent_system/reward_manager/episode.py and "
        "examples/gigpo_trainer/run_alfworld_spear.sh, read at commit 7e84315. The same in both: positive "
        "advantages only, P50 of group means as the baseline, Ã ≥ 0, the bounds of the covariance, both cosines, the "
        "clips, a bonus of 0.1 a turn up to 1, ages up to 5. Differences. (1) A sample of the "
        "code is one turn, and its buffer is used when 1.5 · 2048 of them have a reward above the P50; here "
        "episodes are counted, and capacity=0, a quarter of a step, is ours. (2) The code uses a random power of "
        "two of its buffer, here all. (3) The script adds gigpo's credit of turns, "
        "here the credit is the group's. (4) With normalise=std, deviations that are "
        "remembered have n and those of fresh groups n - 1, as in the code. (5) Of Dr.BoT's masks, that for "
        "answers that were cut off is here, by turns; those for void and repetitive answers are left out."
    ),
    confidence="code",
    reward=TurnBonus(),
    select=WholeTurns(),
    credit=Recalibrated(),
    objective=NowAndThen(),
    penalties=(),
    replay=GoodOnes(),
    together=("credit", "objective", "replay"),
)
