"""DisCO (Li et al. 2025, arXiv:2505.12366).

    s_i = mean_t log π(o_it),   J_q = mean_{i correct} s_i − τ log mean_{j wrong} exp(s_j / τ)
    J = 1/Q Σ_q J_q − sg(β [KL − δ]_+) KL,   KL = mean_t (log π_old − log π)

Differs from GRPO: a group is scored as a discriminator, correct responses against wrong ones, without clip, importance
ratio or weighting by difficulty; a squared-hinge penalty on the KL keeps the step inside a trust region.

Rewards must be binary: above 0 is correct. Q counts every group drawn, including those that are all correct or all
wrong and contribute nothing. The hinge and the log-mean-exp couple the whole optimiser step, so the terms are not
additive over micro-batches.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.grpo import GRPO
from gruppo.pieces import discriminate
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, setting
from gruppo.stages.credit import COMPARES
from gruppo.stages.objective import NOW, OLD
from gruppo.stages.requires import BINARY_REWARD
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class RightAgainstWrong(Occupant):
    """Marks the correct responses: `right_N` is 1 where the reward is above 0, else 0. The objective compares them."""

    writes = ("right_N",)
    requires = (COMPARES, BINARY_REWARD)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        best = torch.where(batch.judged_E, batch.reward_E, torch.zeros_like(batch.reward_E))
        return {"right_N": batch.spread((best > 0).to(best.dtype), "E", "N")}


@dataclass(frozen=True)
class Discriminate(Occupant):
    """mean_{i correct} s_i − tau log mean_{j wrong} exp(s_j / tau) per group, less sg(trust_coef [KL − kl_limit]_+) KL.

    tau         the temperature over wrong responses: a small one picks out the most likely of them
    trust_coef  β, the coefficient of the hinge on the KL to the old policy
    kl_limit    δ, the mean KL per token up to which there is no penalty
    """

    tau: float = setting(10.0, above=0, witness=0.5)
    trust_coef: float = setting(1e3, low=0, witness=10.0)
    kl_limit: float = setting(1e-4, witness=0.5)
    mean: Any = setting("drawn_group", above=0, added=True)
    reads = ("right_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return discriminating_terms(batch, self.mean)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        groups, score_E, drift_N = batch.level("E", "G"), mean_score(batch, stats), drift(batch, stats)
        right_E, wrong_E, _ = compared(batch)
        up_G = batch.gather(score_E, "E", groups, "mean", where=right_E)
        down_G = discriminate.soft_most(score_E, wrong_E, groups, self.tau)
        price = discriminate.hinge(drift_N, batch.learn_N, self.trust_coef, self.kl_limit)
        return {"separate": up_G - down_G, "trust": -price * drift_N}


def discriminating_terms(batch: Batch, mean: str | float) -> list[Term]:
    """Groups with correct and wrong responses, and the trust region over the trained tokens."""
    return [
        Term("separate", compared(batch)[2], mean, at="G", additive=False),
        Term("trust", batch.learn_N, additive=False),
    ]


def mean_score(batch: Batch, stats: Stats) -> Tensor:
    """s_i = mean_t log π(o_it) over the trained tokens."""
    return batch.gather(batch.weight_N * stats.logp_N, "N", "E", "mean", where=batch.learn_N)


def compared(batch: Batch) -> discriminate.Sides:
    """Judged responses with a token to train on, split by `right_N`."""
    right_E = batch.gather(batch.right_N, "N", "E", "any")
    live_E = batch.gather(batch.learn_N, "N", "E", "any") & batch.judged_E
    return discriminate.sides(right_E, live_E, batch.level("E", "G"))


def drift(batch: Batch, stats: Stats) -> Tensor:
    """log π_old − log π of the trained tokens, else 0. Its mean is the KL of the hinge."""
    gap_N = batch.weight_N * (batch.logp_old_N - stats.logp_N)
    return torch.where(batch.learn_N, gap_N, torch.zeros_like(gap_N))


DISCO = GRPO.but(
    name="disco",
    paper="arXiv:2505.12366",
    checked=(
        "Compared with Optimization-AI/DisCO, verl/trainer/ppo/core_algos.py, and "
        "scripts/train/run_disco_logL_1.5b_8k.sh: the score is the logL one, with τ = 10, β = 1e3 and δ = 1e-4. The "
        "scripts make four minibatches per batch; the two here are ours."
    ),
    confidence="code",
    credit=RightAgainstWrong(),
    objective=Discriminate(),
    penalties=(),
    update=Passes(epochs=1, minibatches=2),
)
