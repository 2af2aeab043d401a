"""CHORD (Zhang et al. 2025, arXiv:2508.11408, "On-policy RL meets off-policy experts").

    J = (1 − μ) · J_GRPO  +  μ · 1/Σ|y_j| Σ_j Σ_t sg(φ(p_jt)) log p_jt,      p_jt = π(y_jt | x_j, y_j<t), y an expert's
    φ(p) = p (1 − p),   μ = 0.1      (CHORD-φ)

Differs from GRPO: an imitation term on expert responses, with a denominator of its own; experts enter no group
statistic; mean over tokens, no KL. φ is small where the policy already agrees with a token, and where the token is so
unlikely that imitating it would disrupt the policy.

Experts are the recorded responses of the step's own tasks, one per prompt, if they score 1. `phi=probability` is the
importance-sampling variant. In another method, `method.rollout=chord method.select+=right_experts` takes everything
that belongs together. CHORD-μ is φ = 1 with a falling μ:

    method.objective.phi=one method.objective.expert_coef="cosine(0.9, 0.05, steps=200)"
    method.objective.coef="cosine(0.1, 0.95, steps=200)"
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Use
from gruppo.methods.grpo import GRPO
from gruppo.pieces.stop import stop
from gruppo.stages import Context, Need, Occupant, Prompt, Sched, Stats, Term, Values, setting
from gruppo.stages.objective import NOW, ClippedSurrogate
from gruppo.stages.recorded import RightExperts, expert, expert_N

PHI: dict[str, Callable[[Tensor], Tensor]] = {
    "uncertain": lambda p: p * (1 - p),
    "one": torch.ones_like,
    "probability": lambda p: p,
}


@dataclass(frozen=True)
class WithExperts(Occupant):
    """The usual rollouts, and an expert's response for an `expert_share` of the prompts, outside group statistics."""

    expert_share: float = setting(1.0, low=0, high=1)
    writes = ("expert",)

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        def shown(prompt: Prompt) -> bool:
            return ctx.uniform("expert", prompt.group) < self.expert_share

        drawn = await ctx.play(prompts)
        return [*drawn, *(expert(ctx, p, i, Use.APART) for i, p in enumerate(prompts) if shown(p))]


@dataclass(frozen=True)
class ExpertLikelihood(Occupant):
    """expert_coef · mean of sg(φ(p)) log p over the experts' tokens.

    expert_coef  the coefficient μ, a number or a schedule
    phi          uncertain: p (1 − p); one: 1, plain imitation; probability: p
    """

    expert_coef: Sched = setting(0.1, low=0, witness=0.6)
    phi: Literal["uncertain", "one", "probability"] = "uncertain"
    mean: Any = setting("token", above=0)
    reads = ("expert",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("expert", expert_N(batch), self.mean, coef=ctx.at(self.expert_coef))]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        weight_N = batch.weight_N * PHI[self.phi](stop(stats.logp_N.exp()))
        return {"expert": weight_N * stats.logp_N}


CHORD = GRPO.but(
    name="chord",
    paper="arXiv:2508.11408",
    checked=(
        "Compared with Trinity-RFT, trinity/algorithm/policy_loss_fn/chord_policy_loss.py: p is the current "
        "probability with stop-gradient; the defaults there are μ = 0.1 and φ = p (1 - p), as here, and the example "
        "warms μ up before the cosine decay. In the paper the experts' responses belong to other prompts, 64 of them "
        "with 256 samples; here they belong to the step's own tasks. Since the term has its own denominator, this "
        "changes the noise only."
    ),
    confidence="code",
    rollout=WithExperts(),
    select=RightExperts(),
    objective=(
        ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="token", coef=0.9),
        ExpertLikelihood(expert_coef=0.1),
    ),
    penalties=(),
    version=2,  # 1 had both terms in one objective
    together=("rollout", "objective"),
    breaks={"equal_rewards": "An expert's answer is imitated, whatever the rewards of the sampled ones are."},
)
