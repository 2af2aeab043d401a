"""Reg-GRPO, regressive GRPO (Park et al. 2025, arXiv:2506.07464, "DeepVideo-R1").

    ρ_i = Σ_t (log π(o_it) − log π_old(o_it)),      Â_θ,i = (ρ_i − mean ρ) / (std ρ + ε),   A_i = (R_i − mean R) / std R
    J = −1/G Σ_i (A_i − Â_θ,i)² − β k3

Differs from GRPO: the group-normalised log-ratio of an answer is regressed on its group-normalised reward. No ratio is
clipped and no minimum taken, so that no answer loses its gradient by going too far. Â_θ does not see a constant added
to every ρ of a group, nor, but for ε, a scale: the loss is 0 as soon as ρ rises with R along a straight line. Both
deviations are over n − 1. At the start of a batch ρ = 0 and the gradient is 2A/ε times that of ρ, hence ε = 0.01; the
paper gives none. The regression couples a group, so this objective is not additive (design 3.5). Equal rewards teach
nothing on-policy; later steps of the batch draw their ratios together. No code of the authors could be had: the
equations are the paper's, its β is not known (GRPO's is used). The paper's other half, hints for prompts that are too
hard and noise on frames that are too easy, is another room's, and not here. Four minibatches: with a single step ρ is
0.
"""

from dataclasses import dataclass
from typing import Any

from gruppo.data import Batch, segment
from gruppo.methods.dmpo import learned_E
from gruppo.methods.grpo import GRPO
from gruppo.pieces.ratio import log_ratio
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, setting
from gruppo.stages.objective import NOW, OLD
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class Regression(Occupant):
    """−(A_i − (ρ_i − mean ρ) / (std ρ + eps))² over the answers of a group, ρ the log-ratio of a whole answer."""

    eps: float = setting(0.01, witness=1.0)
    mean: Any = setting("group", added=True)
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        several_G = batch.gather(learned_E(batch), "E", "G", "count", where=learned_E(batch)) > 1
        over_E = learned_E(batch) & batch.spread(several_G, "G", "E")
        return [Term("regression", over_E, self.mean, at="E", additive=False)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        learn_N, groups = batch.learn_N, batch.level("E", "G")
        gap_N = batch.weight_N * log_ratio(stats.logp_N, batch.logp_old_N)
        rho_E = batch.gather(gap_N, "N", "E", "sum", where=learn_N)
        adv_E = batch.gather(batch.adv_N, "N", "E", "mean", where=learn_N)
        centred_E, std_G, _ = segment.deviations(rho_E, groups, where=learned_E(batch), ddof=1)
        error_E = adv_E - centred_E / groups.spread(std_G + self.eps)
        return {"regression": -(error_E**2)}


REG_GRPO = GRPO.but(
    name="reg_grpo",
    paper="arXiv:2506.07464",
    objective=Regression(eps=0.01),
    update=Passes(epochs=1, minibatches=4),
)
