"""Clip-Cov (Cui et al. 2025, arXiv:2505.22617, "The entropy mechanism of reinforcement learning").

    c_t = (A_t − mean A) (log π_t − mean log π),      means over the tokens of the step
    J = 1/Σ|o_i| Σ_t m_t min(r_t A_t, clip(r_t, 1−ε, 1+ε) A_t)
    m_t = 0 for 2e-4 of the tokens, at random among those with 1 < c_t < 5 that the clip has not caught; else 1

Differs from DAPO: a random few of the tokens with a high covariance of advantage and log-probability are dropped from
the objective, but not from its denominator. Few tokens make up most of that covariance, and the entropy falls with it.
The ratio clip is 1 and 1; no overlong shaping, no KL, no dual clip.

If there is a candidate, at least one token is dropped, also where 2e-4 of the tokens is less than one; `chosen_share=0`
drops none. The random key is made of token and step, so the draw is the same in every epoch.
"""

from dataclasses import dataclass
from typing import Any

from gruppo.data import Batch
from gruppo.methods.dapo import DAPO
from gruppo.pieces import surrogate
from gruppo.pieces.covariance import left_out
from gruppo.pieces.ratio import ratio
from gruppo.pieces.stop import stop
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, setting
from gruppo.stages.objective import NOW, OLD


@dataclass(frozen=True)
class ClipCovariance(Occupant):
    """The clipped surrogate, without a random `chosen_share` of all tokens, drawn from cov_low < c < cov_high.

    c = (A − mean A) (log π − mean log π); dropped tokens stay in the denominator.
    """

    chosen_share: float = setting(2e-4, low=0, high=1, witness=[0.2, 0.0])
    cov_low: float = setting(1.0, witness=[-1.0, 0.2])
    cov_high: float = setting(5.0, witness=[1.0, 1.3])
    clip_low: float = setting(0.2, low=0, high=1, witness=0.6)
    clip_high: float = setting(0.2, low=0, witness=0.9)
    mean: Any = setting("token", above=0)
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [
            Term("policy", batch.learn_N, self.mean, additive=False),
            Term("clip_fraction", batch.learn_N, coef=0.0),
            Term("singled_out", batch.learn_N, coef=0.0, additive=False),
        ]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        adv_N, learn_N, r_N = batch.adv_N, batch.learn_N, ratio(stats.logp_N, batch.logp_old_N)
        clip_N = surrogate.clip_fraction(stop(r_N), adv_N, self.clip_low, self.clip_high)
        noise_N, bounds = ctx.uniform("clip_cov", batch.uid_N), (self.chosen_share, self.cov_low, self.cov_high)
        out_N = left_out(adv_N, stop(stats.logp_N), learn_N, clip_N == 0, noise_N, *bounds).to(r_N.dtype)
        value_N = (1.0 - out_N) * surrogate.clipped(r_N, adv_N, self.clip_low, self.clip_high)
        return {"policy": batch.weight_N * value_N, "clip_fraction": clip_N, "singled_out": out_N}


CLIP_COV = DAPO.but(
    name="clip_cov",
    paper="arXiv:2505.22617",
    checked=(
        "Compared with PRIME-RL/Entropy-Mechanism-of-RL, verl/trainer/ppo/core_algos.py, compute_policy_loss_clip_cov, "
        "and recipe/dapo/7b_clip_cov.sh: a share of 2e-4, covariance bounds of 1 and 5, groups of equal reward "
        "removed, eight minibatches (four here, as in dapo), and a ratio clip of 1 and 1, which leaves ratios from 0 "
        "to 2 untouched. The paper's equation has no ratio clip at all; verl's port has 0.2 and 0.2. The code computes "
        "its means and its share over a micro-batch, here over the optimiser step. A share of 0 drops no token here "
        "and one token in the code."
    ),
    confidence="code",
    reward=(),
    objective=ClipCovariance(clip_low=1.0, clip_high=1.0, mean="token"),
)
