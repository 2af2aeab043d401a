"""BNPO, Beta normalisation policy optimisation (Xiao et al. 2025, arXiv:2506.02864).

    p(q) = mean of the group's rewards, on [0, 1];      m, v = mean and variance (n − 1) of p over the step's groups
    (a, b) = (m (1 − m) / v − 1) · (m, 1 − m),      α = max(1 + a/3, 1),   β = max(1 + b/3, 1)
    A_i = (R_i − p(q)) / f(p(q); α, β),      f the density of the Beta distribution,   1/f at most 1e6
    J = 1/B Σ_i Σ_t min(r_it A_i, clip(r_it, 1−0.2, 1+0.28) A_i), at least 10 A_i where A_i < 0

Differs from GRPO: the divisor is not the group's standard deviation but a Beta density, fitted at every step to the
success rates of the prompts. α = β = 1 leaves the mean as a baseline; α = β = 3/2 is GRPO's divisor √(p (1 − p)) times
8/π. Sum over tokens, wider clip, dual clip, no KL.

With one group, or equal rates in all groups, α = β = 1. A group of one has A = 0. Where f = 0 at a rate of 0 or 1,
every R_i = p and A = 0. With several reward components, all between `reward_low` and `reward_high`, A is the mean of
their advantages. Turn rewards belong to their component. TRL's `loss_type="bnpo"` is unrelated.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import Batch, centre
from gruppo.data.pairs import ROUNDING
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Occupant, setting
from gruppo.stages.credit import COMPARES, to_tokens
from gruppo.stages.objective import ClippedSurrogate


@dataclass(frozen=True)
class BetaNormalised(Occupant):
    """A_i = (s_i − p) / f(p; α, β), with f a Beta density fitted to the success rates p of the step's groups.

    reward_low, reward_high  the rewards that are scaled to s = 0 and s = 1
    cap                      the largest 1/f
    """

    reward_low: float = setting(0.0, witness=-1.0)
    reward_high: float = setting(1.0, witness=2.0)
    cap: float = setting(1e6, above=0, witness=0.3)
    writes = ("adv_N",)
    requires = (COMPARES,)

    def wrong(self) -> str:
        return "" if self.reward_low < self.reward_high else (
            f"reward_low={self.reward_low}, reward_high={self.reward_high}: no reward lies between. Use low < high."
        )  # fmt: skip

    def unfit(self, batch: Batch) -> str:
        known = batch.return_EC[batch.judged_E][:, batch.paid_C]
        out = known[(known < self.reward_low - ROUNDING) | (known > self.reward_high + ROUNDING)]
        return "" if not len(out) else (
            f"a reward is {float(out[0]):g}, outside {self.reward_low:g} to {self.reward_high:g}, so it is no success "
            "rate. Set method.credit.reward_low and method.credit.reward_high to the smallest and the largest reward"
        )  # fmt: skip

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        advs = [self.of_one(batch, reward_E) for reward_E in batch.return_EC[:, batch.paid_C].unbind(1)]
        return to_tokens(batch, torch.stack(advs).mean(0) if advs else torch.zeros_like(batch.reward_E))

    def of_one(self, batch: Batch, reward_E: Tensor) -> Tensor:
        """The advantage of one reward component."""
        groups, judged = batch.level("E", "G"), batch.judged_E
        s_E = (reward_E - self.reward_low) / (self.reward_high - self.reward_low)
        rate_G = batch.gather(s_E, "E", groups, "mean", where=judged).double().clamp(0, 1)
        alpha, beta = self.shape(rate_G[batch.gather(judged, "E", groups, "any")])
        weight_G = torch.exp(-log_beta_density(rate_G, alpha, beta)).clamp(max=self.cap)
        # Where f = 0 the weight is at its cap, but every reward equals the mean and is centred to exactly 0.
        return centre(s_E, groups, where=judged) * groups.spread(weight_G.to(s_E.dtype))

    def shape(self, rate_X: Tensor) -> tuple[Tensor, Tensor]:
        """α and β of the divisor, from the moments of these rates."""
        one = rate_X.new_ones(())
        if len(rate_X) < 2 or float(rate_X.var()) <= ROUNDING**2:
            return one, one
        m, v = rate_X.mean(), rate_X.var()
        strength = m * (1 - m) / v - 1
        return torch.maximum(1 + strength * m / 3, one), torch.maximum(1 + strength * (1 - m) / 3, one)


def log_beta_density(p: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """log of p^(α−1) (1 − p)^(β−1) / B(α, β); 0 log 0 is 0."""
    log_b = torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
    return torch.xlogy(alpha - 1, p) + torch.special.xlog1py(beta - 1, -p) - log_b


BNPO = GRPO.but(
    name="bnpo",
    paper="arXiv:2506.02864",
    checked=(
        "Compared with changyi7231/BNPO, recipe/bnpo/src/bnpo_ray_trainer.py, compute_bnpo_outcome_advantage. With one "
        "group the code sets m = 0 and v = 1, which also gives α = β = 1; with equal rates in all groups it computes "
        "0/0. In a group of one it has p = 0, hence A = R/f(0); here A = 0. The mean over several rewards is the "
        "paper's. loss_type bnpo of TRL borrows the name for a mean over tokens and is a different method."
    ),
    confidence="code",
    credit=BetaNormalised(),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.28, clip_dual=10.0, mean="sequence_sum"),
    penalties=(),
)
