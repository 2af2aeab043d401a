"""LOOP, leave-one-out proximal policy optimisation (Chen et al. 2025, arXiv:2502.01600).

    A_i = R_i − 1/(K−1) Σ_{j≠i} R_j
    J = 1/B Σ_i Σ_t min(r_it A_i, clip(r_it, 1 ± 0.2) A_i),      over rollouts with |A_i| ≥ 0.01;      r = π/π_old

Differs from RLOO: PPO's clip and several passes over the same rollouts, which are then off-policy; no KL and no
reference; rollouts with almost no advantage are left out, also of the mean. Differs from GRPO: rewards are not divided
by their standard deviation. With a single pass in one batch it is RLOO.

`unit` is what has one importance ratio: a token (the paper's best), a turn, or the whole trajectory. A ratio of several
tokens is the product of theirs and is clipped as a whole; its gradient is exact, and the logged value counts it once
for each token. Tokens of the environment are in no ratio. An episode that ran out of turns has failed, and one that the
environment lost is not among the K. A group of one is refused.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gruppo.data import Batch, Level
from gruppo.methods.rloo import RLOO
from gruppo.pieces import surrogate
from gruppo.pieces.ratio import log_ratio, product_by_token
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, setting
from gruppo.stages.credit import LeaveOneOut
from gruppo.stages.objective import NOW, OLD
from gruppo.stages.update import Passes

UNITS: dict[str, Level] = {"token": "N", "turn": "K", "trajectory": "E"}


@dataclass(frozen=True)
class UnitClipped(Occupant):
    """min(r A, clip(r, 1 − clip_low, 1 + clip_high) A), r the product of the token ratios of each `unit`."""

    unit: Literal["token", "turn", "trajectory"] = "token"
    clip_low: float = setting(0.2, low=0, high=1, witness=0.6)
    clip_high: float = setting(0.2, low=0, witness=0.9)
    mean: Any = setting("episode_sum", above=0)
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        inside = self.unit != "trajectory"  # which may reach over several sequences
        return [
            Term("policy", batch.learn_N, self.mean, additive=inside),
            Term("clip_fraction", batch.learn_N, coef=0.0, additive=inside),
        ]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        adv_N, units = batch.adv_N, batch.level("N", UNITS[self.unit])
        r_N = product_by_token(log_ratio(stats.logp_N, batch.logp_old_N), units, batch.learn_N)
        clip_N = surrogate.clip_fraction(r_N.detach(), adv_N, self.clip_low, self.clip_high)
        value_N = surrogate.clipped(r_N, adv_N, self.clip_low, self.clip_high)
        return {"policy": batch.weight_N * value_N, "clip_fraction": clip_N}


@dataclass(frozen=True)
class MaskSmall(Occupant):
    """Tokens with |A| below `least_adv` are neither learned nor counted; their rewards stay in the statistics."""

    least_adv: float = setting(0.01, low=0, witness=0.6)

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        return batch.adv_N.abs() >= self.least_adv, torch.ones_like(batch.weight_N)


LOOP = RLOO.but(
    name="loop",
    paper="arXiv:2502.01600",
    checked=(
        "Written from the text of the paper. There K = 6, 40 tasks an iteration and a constant learning rate of 5e-5 "
        "with LoRA, here the run's. The clip of 0.2, two passes and two minibatches are ours: the text at hand has no "
        "numbers for them. The paper stops collecting when every task has 4 rollouts and 90 % of all are in; here all "
        "are waited for, and K is the number of rollouts of a task that could be judged. Its best unit is the token "
        "(66.4 against 61.7 for turns and 48.9 for trajectories)."
    ),
    confidence="paper",
    select=MaskSmall(least_adv=0.01),
    credit=LeaveOneOut(kl_coef=0.0),
    objective=UnitClipped(unit="token", clip_low=0.2, clip_high=0.2, mean="episode_sum"),
    update=Passes(epochs=2, minibatches=2),
)
