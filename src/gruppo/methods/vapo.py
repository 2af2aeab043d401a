"""VAPO (Yue et al. 2025, arXiv:2504.05118).

    Â_t = GAE with λ_i = 1 − 1/(0.05 |o_i|) for the policy,      R̂_t = Σ_{s≥t} r_s (λ = 1) for the critic
    J_π = mean_t min(r_t A_t, clip(r_t, 1−0.2, 1+0.28) A_t) + 0.1 · mean_{t of right answers} log π(o_t),  A = whiten(Â)

Differs from PPO: the critic is first trained alone, on returns of the initial policy (value pre-training); its targets
and the policy's advantages have separate λ (decoupled GAE); the policy's λ grows with the length of the answer, so that
errors are summed over a fixed share of it (length-adaptive GAE); the upper clip is higher; right answers are also
imitated. An answer of at most 20 tokens has λ = 0, the one-step TD error. Group sampling is the run's `samples`. Right
is a reward above 0, so rewards must be binary. The critic's learning rate is the run's unless cast.critic.lr is set.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, Key, minibatches
from gruppo.methods.ppo import PPO
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, need, setting
from gruppo.stages.credit import seat_N, two_gaes, whitened_gae
from gruppo.stages.objective import NOW, ClippedSurrogate, ValueLoss
from gruppo.stages.requires import BINARY_REWARD
from gruppo.stages.turns import judged_K, seat_return
from gruppo.stages.update import Passes


def adaptive_lambda(length: Tensor, length_share: float) -> Tensor:
    """λ = 1 − 1/(length_share · length), clipped to [0, 1], so that Σ_k λ^k = length_share · length."""
    return torch.clamp(1.0 - 1.0 / (length_share * length.clamp(min=1)), 0.0, 1.0)


@dataclass(frozen=True)
class LengthAdaptiveGae(Occupant):
    """GAE with λ = 1 − 1/(length_share · length) for the policy, whitened, and lam_value for the critic's targets.

    Also writes `right_N`, which marks the tokens of right answers.
    """

    gamma: float = setting(1.0, low=0, high=1, witness=0.5)
    length_share: float = setting(0.05, above=0, witness=2.0)
    lam_value: float = setting(1.0, low=0, high=1, witness=0.3)
    writes = ("adv_N", "ret_N", "right_N")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("value", "critic"),)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        mine, adv, ret, known = two_gaes(batch, self.gamma, self.lam_N(batch), self.lam_value)
        right_K = judged_K(batch) & (seat_return(batch) > 0)
        right_N = batch.spread(right_K, "K", "N").to(batch.weight_N.dtype)
        return {**whitened_gae(batch, mine, adv, ret, known, known), "right_N": right_N}

    def lam_N(self, batch: Batch) -> Tensor:
        """The policy's λ, from the number of tokens that were sampled in the episode, by the same agent."""
        seats = Key(seat_N(batch), batch.seats.size)
        length = batch.gather(batch.sampled_N, "N", seats, "count", where=batch.sampled_N)
        return seats.spread(adaptive_lambda(length.to(batch.weight_N.dtype), self.length_share))


@dataclass(frozen=True)
class ImitateRight(Occupant):
    """+nll_coef · mean log π over the tokens of right answers; 0 if there are none."""

    nll_coef: float = setting(0.1, low=0, witness=0.5)
    mean: Any = setting("token", above=0, added=True)
    reads = ("right_N",)
    requires = (BINARY_REWARD,)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("imitation", batch.learn_N & (batch.right_N > 0), self.mean, coef=self.nll_coef)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {"imitation": batch.weight_N * stats.logp_N}


@dataclass(frozen=True)
class CriticFirst(Passes):
    """Passes over the batch; in the first `warmup` steps they train every role except the policy.

    Without another role to train there is no warm-up.
    """

    warmup: int = setting(10, low=0, witness=0)

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        others = [role for role in learner.trained if role not in learner.writers]
        roles = others if others and ctx.step < self.warmup else learner.trained
        for epoch in range(self.epochs):
            for part in minibatches(batch, self.minibatches, ctx.seed, ctx.step, epoch):
                for role in roles:
                    learner.step(role, part)


VAPO = PPO.but(
    name="vapo",
    paper="arXiv:2504.05118",
    checked=(
        "Compared with third-party notes on the paper with its equations and constants (α = 0.05, μ = 0.1, 16 "
        "samples of 512 prompts, actor 1e-6, critic 2e-6); no code of the authors was found. The paper trains the "
        "critic alone for 50 steps before some 5000 of the policy; the 10 here are ours. Four updates a batch, as "
        "for dapo."
    ),
    confidence="notes",
    credit=LengthAdaptiveGae(gamma=1.0, length_share=0.05, lam_value=1.0),
    objective={
        "policy": (ClippedSurrogate(clip_low=0.2, clip_high=0.28, mean="token"), ImitateRight(nll_coef=0.1)),
        "critic": ValueLoss(clip_value=0.5),
    },
    version=2,  # 1 had the imitation of right answers in penalties
    update=CriticFirst(epochs=1, minibatches=4, warmup=10),
    breaks={
        "equal_rewards": "The advantage is against the critic's guess, which may be wrong where all rewards are equal.",
        "roles": "In the first steps the critic is trained alone: the policy, although trained later, stays as it is.",
    },
)
