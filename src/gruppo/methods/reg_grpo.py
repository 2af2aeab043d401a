"""Reg-GRPO, regressive GRPO (Park et al. 2025, arXiv:2506.07464, "DeepVideo-R1").

    ρ_i = Σ_t (log π(o_it) − log π_old(o_it)),      Â_θ,i = (ρ_i − mean ρ) / (std ρ + ε),   A_i = (R_i − mean R) / std R
    J = −1/G Σ_i (A_i − Â_θ,i)² − β k3

Differs from GRPO: the group-normalised log-ratio of an answer is regressed on its group-normalised reward. Without a
clip, no answer loses its gradient by moving too far. Â_θ is invariant to a shift of every ρ of a group and, up to ε, to
a scale: the loss is 0 once ρ increases linearly with R. Both standard deviations use n − 1. At the start of a batch ρ =
0 and the gradient is 2A/ε times that of ρ, hence ε = 0.01. The regression couples a group, so the objective is not a
sum over answers. Groups of equal rewards have no gradient on-policy; later steps of the batch pull their log-ratios
together. With a single minibatch ρ stays 0.
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
    """−(A_i − (ρ_i − mean ρ) / (std ρ + eps))² over a group; ρ is the log-ratio of a whole answer."""

    eps: float = setting(0.01, above=0, witness=1.0)
    mean: Any = setting("group", above=0, added=True)
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
    checked=(
        "The equations are the paper's; no code of the authors could be obtained. The paper gives no ε (0.01 is "
        "ours), and its β is not known (GRPO's 0.04 is used). Four minibatches are ours. The paper's other half, "
        "hints for prompts that are too hard and noise on frames that are too easy, belongs to other rooms and is "
        "left out."
    ),
    confidence="paper",
    objective=Regression(eps=0.01),
    update=Passes(epochs=1, minibatches=4),
)
