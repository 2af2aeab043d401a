"""DRPO, decoupled reward policy optimisation (Li et al. 2025, arXiv:2510.04474).

    s_i = mean_t log π(o_it),   ω_i = exp((1 − |o_i|/L) / λ) / Σ over right answers,   λ = 0.1
    J_q = Σ_{i right} ω_i s_i − τ log mean_{j wrong} exp(s_j / τ)
    J = 1/Q Σ_q J_q − sg(β [KL − δ]_+) KL,   KL = mean_t (log π_old − log π)

Differs from DisCO: a short correct response weighs more than a long one. The length only moves weight between correct
responses, and no weight is negative; with a length term in the reward, a long correct response can fall below the mean
of its group and be unlearned. The length of a wrong response has no effect. λ → ∞ is DisCO.

|o_i| counts the trained tokens; L is the run's max_tokens unless `budget_tokens` is set. As in DisCO, rewards are
binary, Q counts every group drawn, and the terms are not additive over micro-batches. Other methods named DRPO exist.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.disco import DISCO, compared, discriminating_terms, drift, mean_score
from gruppo.pieces import discriminate
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, setting
from gruppo.stages.objective import NOW, OLD
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class Decoupled(Occupant):
    """DisCO's objective, with correct responses weighted by ω ∝ exp((1 − length / budget) / length_temperature).

    length_temperature         λ; a large one, such as 1e9, is DisCO
    budget_tokens              L; 0: the run's max_tokens
    tau, trust_coef, kl_limit  as in `Discriminate`
    """

    length_temperature: float = setting(0.1, above=0, witness=1.0)
    budget_tokens: int = setting(0, low=0, witness=30)
    tau: float = setting(10.0, above=0, witness=0.5)
    trust_coef: float = setting(1e3, low=0, witness=10.0)
    kl_limit: float = setting(1e-4, witness=0.5)
    mean: Any = setting("drawn_group", above=0, added=True)
    reads = ("right_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def shares_E(self, ctx: Context, batch: Batch, right_E: Tensor) -> Tensor:
        """ω: the weights of the correct responses, which sum to 1 in each group; 0 for others."""
        longest, groups = self.budget_tokens or ctx.sampling.max_tokens, batch.level("E", "G")
        length_E = batch.gather(batch.learn_N, "N", "E", "count", where=batch.learn_N).to(batch.weight_N.dtype)
        short_E = (1.0 - length_E / longest) / self.length_temperature
        total_E = groups.spread(batch.gather(short_E, "E", groups, "logsumexp", where=right_E))
        gap_E = torch.where(right_E, short_E - total_E, torch.zeros_like(short_E))
        return torch.where(right_E, torch.exp(gap_E), torch.zeros_like(short_E))

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return discriminating_terms(batch, self.mean)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        groups, score_E, drift_N = batch.level("E", "G"), mean_score(batch, stats), drift(batch, stats)
        right_E, wrong_E, _ = compared(batch)
        up_G = batch.gather(self.shares_E(ctx, batch, right_E) * score_E, "E", groups, "sum", where=right_E)
        down_G = discriminate.soft_most(score_E, wrong_E, groups, self.tau)
        price = discriminate.hinge(drift_N, batch.learn_N, self.trust_coef, self.kl_limit)
        return {"separate": up_G - down_G, "trust": -price * drift_N}


DRPO_DECOUPLED = DISCO.but(
    name="drpo_decoupled",
    paper="arXiv:2510.04474",
    checked=(
        "Compared with Optimization-AI/DRPO, verl/verl/trainer/ppo/core_algos.py, compute_policy_loss_drpo, and "
        "scripts/train/run_drpo_1.5b_8k.sh: λ = 0.1, τ = 10, β = 1e3, δ = 1e-4, the plain KL, four minibatches. The "
        "code writes τ Z/sg(Z) for the log-mean-exp, which has the same gradient and another value."
    ),
    confidence="code",
    objective=Decoupled(),
    update=Passes(epochs=1, minibatches=4),
)
