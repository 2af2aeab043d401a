"""GPPO, gradient-preserving clipping (Su et al. 2025, arXiv:2508.07629, "Klear-Reasoner").

    C(r) = clip(r, (1−ε_low) r/sg(r), (1+ε_high) r/sg(r)),   sg stops the gradient
    J = 1/Σ|o_i| Σ_i Σ_t min(r_it A_i, C(r_it) A_i),   at least 10 A_i where A_i < 0

Differs from DAPO: a clipped token keeps the gradient of its bound, (1+ε_high) A ∇log π if A > 0 and the token has
become too likely, (1−ε_low) A ∇log π if A < 0 and it has become too unlikely. The value of the objective is PPO's
everywhere. No overlong shaping. Differs from CISPO: a token with A < 0 and a large ratio is weighted by its full ratio,
up to the dual clip, beyond which it has no gradient.
"""

from dataclasses import dataclass
from typing import Any

from gruppo.data import Batch
from gruppo.methods.dapo import DAPO
from gruppo.pieces import surrogate
from gruppo.pieces.ratio import ratio
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, setting
from gruppo.stages.objective import NOW, OLD


@dataclass(frozen=True)
class GradientPreserving(Occupant):
    """min(r A, C(r) A), C(r) = clip(r, (1 − clip_low) r/sg(r), (1 + clip_high) r/sg(r)).

    clip_dual  lower bound clip_dual · A where A < 0, without a gradient beyond it; 0: none
    """

    clip_low: float = setting(0.2, low=0, high=1, witness=0.6)
    clip_high: float = setting(0.28, low=0, witness=0.9)
    clip_dual: float = setting(10.0, above=1, also=0, witness=1.5)
    mean: Any = setting("token", above=0)
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.learn_N, self.mean), Term("gradient_bounded", batch.learn_N, coef=0.0)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        adv_N, r_N = batch.adv_N, ratio(stats.logp_N, batch.logp_old_N)
        value_N = surrogate.preserving(r_N, adv_N, self.clip_low, self.clip_high)
        if self.clip_dual:
            value_N = surrogate.dual_clipped(value_N, adv_N, self.clip_dual)
        bounded_N = surrogate.clip_fraction(r_N.detach(), adv_N, self.clip_low, self.clip_high)
        return {"policy": batch.weight_N * value_N, "gradient_bounded": bounded_N}


GPPO = DAPO.but(
    name="gppo",
    paper="arXiv:2508.07629",
    checked=(
        "Compared with suu990901/KlearReasoner, verl/trainer/ppo/core_algos.py, compute_gppo_loss, and "
        "recipe/dapo/perf_run_dapo_ours_math.sh: clips 0.2 and 0.28, dual clip 10, mean over tokens, no KL, no "
        "overlong shaping, groups of equal reward removed, eight updates per batch (four here, as in dapo). Of the "
        "paper, the formula in the README was read. A more general form with a factor on each bound has both factors "
        "at 1 in the code; it is not implemented here."
    ),
    confidence="code",
    reward=(),
    objective=GradientPreserving(clip_low=0.2, clip_high=0.28, clip_dual=10.0, mean="token"),
)
