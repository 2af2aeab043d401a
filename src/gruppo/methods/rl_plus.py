"""RL-PLUS, hybrid-policy optimisation (Dong et al. 2025, arXiv:2508.00222).

    A_i = R_i − mean R      over G − 1 sampled answers and one of an expert
    own tokens:       r_it A_i,      r = π/π_old, not clipped
    expert's tokens:  w_it A_i (1 − sg π)^γ,      w = 2 π / (π_old + ½ (π_old + 1)),   γ = ½
    J = 1/G Σ_i 1/C Σ_t of these + 0.001 · entropy,      C = the longest answer there can be

An expert's answer stands in every group. Its behaviour policy is not known, so its ratio takes a mixture of π_old and
of what is halfway to certainty for it (multiple importance sampling): w is at most 4 π. Its advantage counts the more,
the less likely the policy finds the token. Differs from Dr.GRPO: the expert, the two rules, no clip. Checked against
YihongDong/RL-PLUS, rl_plus/verl/verl/recipe/rlplus_core_alg.py, compute_token_on_off_policy_loss with strategy
RL-PLUS, and exp_scripts/train_RL-PLUS.sh (statistics over the mixed group, without deviation; loss_remove_clip,
loss_remove_token_mean; two updates a batch). The code divides a sum over the whole micro-batch by C alone; here it is
divided by the answers too, as in Dr.GRPO. Only experts that score 1 join (right_experts in select), so a group without
one has a sample less.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gruppo.data import Batch, Episode, Use
from gruppo.methods.dr_grpo import DR_GRPO
from gruppo.pieces.ratio import ratio
from gruppo.pieces.stop import stop
from gruppo.stages import Context, Need, Occupant, Prompt, Stats, Term, Values, setting
from gruppo.stages.objective import NOW, OLD
from gruppo.stages.penalties import EntropyBonus
from gruppo.stages.recorded import RightExperts, expert, expert_N
from gruppo.stages.requires import Samples
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class ExpertInGroup(Occupant):
    """One sample less of every prompt, and an expert's answer in its place: a member of the group like the others."""

    writes = ("expert",)
    requires = (Samples(2, "The expert replaces one sample, so a single sample leaves nothing to compare it with."),)

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        fewer = [replace(p, samples=p.samples - 1) for p in prompts]
        drawn = await ctx.play(fewer)
        return [*drawn, *(expert(ctx, p, i, Use.LEARN) for i, p in enumerate(fewer))]


@dataclass(frozen=True)
class MixedImportance(Occupant):
    """r A on the policy's tokens, w A (1 − sg π)^explore on the experts', summed and divided by a constant."""

    explore: float = setting(0.5, witness=3.0)
    mean: Any = "episode_sum/max_tokens"
    reads = ("adv_N", "expert")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.learn_N | expert_N(batch), self.mean)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        old_N, now_N, theirs_N = batch.logp_old_N.exp(), stats.logp_N.exp(), expert_N(batch)
        mixed_N = 2 * now_N / (old_N + 0.5 * (old_N + 1)) * (1 - stop(now_N)).clamp(min=0) ** self.explore
        value_N = batch.adv_N * torch.where(theirs_N, mixed_N, ratio(stats.logp_N, batch.logp_old_N))
        return {"policy": batch.weight_N * value_N}


RL_PLUS = DR_GRPO.but(
    name="rl_plus",
    paper="arXiv:2508.00222",
    rollout=ExpertInGroup(),
    select=RightExperts(),
    objective=MixedImportance(explore=0.5),
    penalties=EntropyBonus(entropy_coef=0.001),
    update=Passes(epochs=1, minibatches=2),
    together=("rollout", "objective"),
    version=2,  # 1 had budget_tokens for the constant of its mean
)
