"""RL-PLUS, hybrid-policy optimisation (Dong et al. 2025, arXiv:2508.00222).

    A_i = R_i − mean R      over G − 1 sampled answers and one of an expert
    own tokens:       r_it A_i,      r = π/π_old, not clipped
    expert's tokens:  w_it A_i (1 − sg π)^γ,      w = 2 π / (π_old + ½ (π_old + 1)),   γ = ½
    J = 1/G Σ_i 1/C Σ_t of these + 0.001 · entropy,      C = the longest answer there can be

Differs from Dr.GRPO: one answer of an expert replaces a sample in each group, expert tokens have their own rule, and
nothing is clipped. The expert's behaviour policy is unknown, so the denominator of its importance ratio is a mixture of
π_old and ½ (π_old + 1) (multiple importance sampling); w is at most 4 π. The factor (1 − sg π)^γ gives more weight to
expert tokens that the policy finds unlikely. Only experts with a reward of 1 join (`right_experts` in select), so a
group without one has one sample fewer. One sample per prompt is refused.
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
    """Replaces one sample of each prompt by an expert's answer, a member of the group like the others."""

    writes = ("expert",)
    requires = (Samples(2, "The expert replaces one sample, so a single sample leaves nothing to compare it with."),)

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        fewer = [replace(p, samples=p.samples - 1) for p in prompts]
        drawn = await ctx.play(fewer)
        return [*drawn, *(expert(ctx, p, i, Use.LEARN) for i, p in enumerate(fewer))]


@dataclass(frozen=True)
class MixedImportance(Occupant):
    """r A on the policy's tokens, w A (1 − sg π)^explore on the experts'; `mean` is a sum over a constant."""

    explore: float = setting(0.5, low=0, witness=3.0)
    mean: Any = setting("episode_sum/max_tokens", above=0)
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
    checked=(
        "Compared with YihongDong/RL-PLUS: rl_plus/verl/verl/recipe/rlplus_core_alg.py, "
        "compute_token_on_off_policy_loss with strategy RL-PLUS, rlplus_actor.py, update_policy, and "
        "exp_scripts/train_RL-PLUS.sh (statistics over the mixed group, without standard deviation; "
        "loss_remove_clip, loss_remove_token_mean; two updates a batch). The code divides the sum over a "
        "micro-batch by C = max_response_length alone and adds 0.001 times the mean entropy of the micro-batch; "
        "here the policy term is also divided by the number of answers, as in Dr.GRPO. So relative to the policy "
        "term the entropy bonus weighs m times as much here as in the code, m being the number of answers in a "
        "micro-batch of the code (32768 tokens in the script: 3 answers of full length, more of shorter ones). For "
        "the code's weight set method.penalties.entropy_bonus.entropy_coef to 0.001 / m, or method.objective.mean "
        "to the NUMBER C · B / m with B the answers of an optimiser step. The code's entropy also covers the "
        "expert's tokens, here the policy's own only."
    ),
    confidence="code",
    rollout=ExpertInGroup(),
    select=RightExperts(),
    objective=MixedImportance(explore=0.5),
    penalties=EntropyBonus(entropy_coef=0.001),
    update=Passes(epochs=1, minibatches=2),
    together=("rollout", "objective"),
    version=2,  # 1 had budget_tokens for the constant of its mean
)
