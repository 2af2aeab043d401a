"""CHORD (Zhang et al. 2025, arXiv:2508.11408, "On-policy RL meets off-policy experts").

    J = (1 − μ) · J_GRPO  +  μ · 1/Σ|y_j| Σ_j Σ_t sg(φ(p_jt)) log p_jt,      p_jt = π(y_jt | x_j, y_j<t), y an expert's
    φ(p) = p (1 − p),   μ = 0.1      (CHORD-φ)

Experts' answers are imitated beside the reinforcement, by a weight μ of the whole and a weight φ of each token, which
is small where the policy already agrees and where the token would tear at it. Differs from GRPO: this second term with
a count of its own; experts are in no statistic of a group; mean over tokens, no KL. CHORD-μ is φ = 1 with a weight that
falls: `method.objective.phi=one method.objective.mu="cosine(0.9, 0.05, steps=200)"`; φ = p is its importance-sampling
variant (`phi=probability`). Checked against Trinity-RFT, trinity/algorithm/policy_loss_fn/chord_policy_loss.py: p is
that of now, stopped; its defaults are μ = 0.1 and φ as here, and its example warms μ up before the cosine. Experts are
the recorded answers of the step's own tasks, one a prompt, those that score 1; in the paper they come from other
prompts, 64 beside 256 samples: a count of their own makes that a matter of noise alone. In another method,
`method.rollout=chord method.select+=right_experts` takes what belongs together.
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
    """Samples of every prompt, and beside them, for an `expert_share` of the prompts, an expert's answer, apart."""

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

    phi  uncertain: p (1 − p); one: 1, plain imitation; probability: p
    """

    expert_coef: Sched = setting(0.1, low=0, witness=0.6)
    phi: Literal["uncertain", "one", "probability"] = "uncertain"
    mean: Any = "token"
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
