"""CISPO (MiniMax-M1, 2025, arXiv:2506.13585).

    J = 1/Σ|o_i| Σ_i Σ_t sg( clip(r_it, 1−ε_low, 1+ε_high) ) A_i log π(o_it | q, o_i<t),   ε_low = 1 (off), ε_high = 4

Differs from GRPO: the importance ratio is clipped and detached, and multiplies log π, instead of the objective being
clipped, so no token loses its gradient; mean over tokens; no KL.

There are four updates per batch: with a single one every ratio is 1, and the gradient is that of REINFORCE. The paper
also redraws groups as DAPO does and shapes lengths; `select=RedrawEqualGroups()` and `reward=OverlongShaping()` add
both.
"""

from dataclasses import dataclass
from typing import Any

import torch

from gruppo.data import Batch
from gruppo.methods.grpo import GRPO
from gruppo.pieces.ratio import ratio
from gruppo.pieces.stop import stop
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, setting
from gruppo.stages.objective import NOW, OLD
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class ClippedWeight(Occupant):
    """sg(clip(r, 1 − clip_low, 1 + clip_high)) A log π: every token keeps its gradient, with a bounded weight."""

    clip_low: float = setting(1.0, low=0, high=1, witness=0.1)
    clip_high: float = setting(4.0, low=0, witness=0.1)
    mean: Any = setting("token", above=0)
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.learn_N, self.mean), Term("weight_clipped", batch.learn_N, coef=0.0)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        r_N = stop(ratio(stats.logp_N, batch.logp_old_N))
        clipped_N = torch.clamp(r_N, 1.0 - self.clip_low, 1.0 + self.clip_high)
        value_N = clipped_N * batch.adv_N * stats.logp_N
        return {"policy": batch.weight_N * value_N, "weight_clipped": (clipped_N != r_N).to(r_N.dtype)}


CISPO = GRPO.but(
    name="cispo",
    paper="arXiv:2506.13585",
    checked=(
        "Compared with verl core_algos.py, compute_policy_loss_cispo, and with TRL grpo_trainer.py, loss_type cispo. "
        "TRL has no lower clip and takes ε_high as the largest weight itself; verl takes 1 + ε_high, as here. The "
        "paper gives no number; the largest weight of 5 is TRL's, from ScaleRL (arXiv:2510.13786). Four updates per "
        "batch are ours."
    ),
    confidence="code",
    objective=ClippedWeight(clip_low=1.0, clip_high=4.0, mean="token"),
    penalties=(),
    update=Passes(epochs=1, minibatches=4),
)
