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
from typing import Literal

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Use
from gruppo.methods.grpo import GRPO
from gruppo.pieces.stop import stop
from gruppo.stages import Context, Need, Occupant, Prompt, Sched, Stats, Term
from gruppo.stages.names import nearest
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.recorded import RightExperts, expert, expert_N
from gruppo.stages.rollout import Group

PHI: dict[str, Callable[[Tensor], Tensor]] = {
    "uncertain": lambda p: p * (1 - p),
    "one": torch.ones_like,
    "probability": lambda p: p,
}


@dataclass(frozen=True)
class WithExperts(Occupant):
    """Samples of every prompt, and beside them, for an `expert_share` of the prompts, an expert's answer, apart."""

    expert_share: float = 1.0
    makes = frozenset({"expert"})
    witness = {"expert_share": 0.0}

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        def shown(prompt: Prompt) -> bool:
            return ctx.uniform("expert", prompt.group) < self.expert_share

        drawn = await Group()(ctx, prompts)
        return [*drawn, *(expert(ctx, p, i, Use.APART) for i, p in enumerate(prompts) if shown(p))]


@dataclass(frozen=True)
class Chord(Occupant):
    """(1 − mu) · the clipped surrogate over the policy's tokens + mu · sg(φ(p)) log p over the experts' tokens.

    phi  uncertain: p (1 − p); one: 1, plain imitation; probability: p
    """

    mu: Sched = 0.1
    phi: Literal["uncertain", "one", "probability"] = "uncertain"
    clip_low: float = 0.2
    clip_high: float = 0.2
    takes = ("adv_N",)
    handles = frozenset({"expert"})
    witness = {"mu": 0.6, "phi": ["one", "probability"], "clip_low": 0.6, "clip_high": 0.9}

    def __post_init__(self) -> None:
        if self.phi not in PHI:
            raise ValueError(f"phi={self.phi!r} weighs no token{nearest(self.phi, PHI)}. Use one of {', '.join(PHI)}.")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return ClippedSurrogate().needs(ctx)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        mu, logp_N = ctx.at(self.mu), stats.logp_N
        policy, clipped = ClippedSurrogate(self.clip_low, self.clip_high)(ctx, batch, stats)
        weight_N = batch.weight_N * PHI[self.phi](stop(logp_N.exp()))
        return [
            Term("policy", policy.value, policy.over, "token", coef=1 - mu),
            Term("expert", weight_N * logp_N, expert_N(batch), "token", coef=mu),
            clipped,
        ]


CHORD = GRPO.but(
    name="chord",
    paper="arXiv:2508.11408",
    rollout=WithExperts(),
    select=RightExperts(),
    objective=Chord(),
    penalties=(),
    together=("rollout", "objective"),
    breaks={"equal_rewards": "An expert's answer is imitated, whatever the rewards of the sampled ones are."},
)
