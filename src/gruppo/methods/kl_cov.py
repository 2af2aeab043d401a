"""KL-Cov (Cui et al. 2025, arXiv:2505.22617, "The entropy mechanism of reinforcement learning").

    c_t = (A_t − mean A) (log π_t − mean log π),      means over the tokens of the step
    J = 1/Σ|o_i| Σ_t [ r_t A_t − β |log π_t − log π_old,t| for the 0.2 % of tokens with the largest c_t, else r_t A_t ]

Differs from Clip-Cov: the tokens with the largest covariance keep their gradient and are penalised for leaving the old
policy. Differs from DAPO: no clip of the ratio, no overlong shaping. At least one token is penalised, unless the share
is 0. In the first optimiser step of a batch π = π_old, so the penalty and its gradient are 0: with a single update per
batch this is the plain policy gradient.
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
    """r A, minus trust_coef |log π − log π_old| on the `chosen_share` of tokens with the largest covariance."""

    chosen_share: float = setting(2e-3, low=0, high=1, witness=[0.2, 0.0])
    trust_coef: float = setting(1.0, low=0, witness=3.0)
    mean: Any = setting("token", above=0)
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


KL_COV = DAPO.but(
    name="kl_cov",
    paper="arXiv:2505.22617",
    checked=(
        "Compared with PRIME-RL/Entropy-Mechanism-of-RL: verl/trainer/ppo/core_algos.py, "
        "compute_policy_loss_kl_cov, and recipe/dapo/7b_kl_cov.sh: a share of 0.2 %, β = 1, mean over tokens, "
        "groups of equal rewards left out, eight minibatches (four here, as in dapo). For the 32B model the share "
        "is 0.02 %. The code takes the means and the share over a micro-batch; here they are taken over the "
        "optimiser step."
    ),
    confidence="code",
    reward=(),
    objective=KlCovariance(),
)
