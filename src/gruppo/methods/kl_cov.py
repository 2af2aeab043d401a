"""KL-Cov (Cui et al. 2025, arXiv:2505.22617, "The entropy mechanism of reinforcement learning").

    c_t = (A_t − mean A) (log π_t − mean log π),      means over the tokens of the step
    J = 1/Σ|o_i| Σ_t [ r_t A_t − β |log π_t − log π_old,t| for the 0.2 % of tokens with the largest c_t, else r_t A_t ]

Differs from Clip-Cov: the tokens with the largest covariance stay, and are held near the old policy instead. Differs
from DAPO: no clip of the ratio at all, no shaping of lengths. Checked against PRIME-RL/Entropy-Mechanism-of-RL,
verl/trainer/ppo/core_algos.py, compute_policy_loss_kl_cov, and recipe/dapo/7b_kl_cov.sh: 0.2 %, β = 1, mean over
tokens, equal groups left out, eight minibatches (four here, as in dapo); 0.02 % for a model of 32B. The code takes
means and share over a micro-batch, here over the optimiser step. At least one token is held, but none for a share of 0.
In the first step of a batch π is π_old: the penalty is 0, and so is its gradient, so that with a single update nothing
differs from REINFORCE.
"""

from dataclasses import dataclass
from typing import Any

import torch

from gruppo.data import Batch
from gruppo.methods.dapo import DAPO
from gruppo.pieces.covariance import lowest, singled_out, token_covariance
from gruppo.pieces.ratio import ratio
from gruppo.pieces.stop import stop
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, setting
from gruppo.stages.objective import NOW, OLD


@dataclass(frozen=True)
class KlCovariance(Occupant):
    """r A; the `chosen_share` of tokens with the largest covariance pay trust_coef |log π − log π_old|."""

    chosen_share: float = setting(2e-3, witness=[0.2, 0.0])
    trust_coef: float = setting(1.0, witness=3.0)
    mean: Any = "token"
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [
            Term("policy", batch.learn_N, self.mean, additive=False),
            Term("singled_out", batch.learn_N, coef=0.0, additive=False),
        ]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        learn_N, gap_N = batch.learn_N, stats.logp_N - batch.logp_old_N
        cov_N = token_covariance(batch.adv_N, stop(stats.logp_N), learn_N)
        count = singled_out(self.chosen_share, learn_N)
        held_N = lowest(-cov_N, batch.uid_N.to(cov_N.dtype), learn_N, count)
        value_N = ratio(stats.logp_N, batch.logp_old_N) * batch.adv_N
        value_N = value_N - self.trust_coef * torch.where(held_N, gap_N.abs(), torch.zeros_like(gap_N))
        return {"policy": batch.weight_N * value_N, "singled_out": held_N.to(gap_N.dtype)}


KL_COV = DAPO.but(name="kl_cov", paper="arXiv:2505.22617", reward=(), objective=KlCovariance())
