"""DMPO, distribution-matching policy optimisation (Li et al. 2026, arXiv:2605.19461, "Beyond mode collapse").

    p_i = exp(R_i/α) / Σ_j exp(R_j/α),      q_i = exp(l_i) / Σ_j exp(l_j),   l_i = mean_t log π(o_it)
    J = J_GRPO − λ 1/G Σ_i (p_i − q_i)²,      α = 1/15, λ = 2

Differs from GRPO: beside the clipped surrogate, the policy's distribution over the answers of a group is drawn to one
that is larger where the reward is; answers of equal reward are drawn to equal probability, so that a mode that was
found first does not take everything. p has no gradient. Both sums are over the answers of a group that are learned
from; one alone has p = q = 1. A group of equal rewards has a flat p: its answers are made alike, unless
`equal_groups=False`. The term couples a group, so this objective is not additive (design 3.5). No code of the authors
could be had: the equations are those of notes on the paper, α and λ those that a reimplementation for TRL gives as the
paper's. A port to verl takes advantages for R and λ = 1. α is in units of the reward: 1/15 suits rewards from 0 to 1.
Whether the paper keeps GRPO's KL is not known; it is off here.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Need, Occupant, Stats, Term
from gruppo.stages.objective import ClippedSurrogate


@dataclass(frozen=True)
class MatchDistribution(Occupant):
    """The clipped surrogate, less match_coef times the squared distance of p and q over the answers of a group."""

    match_coef: float = 2.0
    target_temperature: float = 1.0 / 15.0
    equal_groups: bool = True
    clip_low: float = 0.2
    clip_high: float = 0.2
    mean: Any = "sequence"
    takes = ("adv_N",)
    witness = {
        "match_coef": 0.0, "target_temperature": 1.0, "equal_groups": False, "clip_low": 0.6, "clip_high": 0.9,
        "mean": ["token", "sequence"],
    }  # fmt: skip

    def __post_init__(self) -> None:
        if not self.target_temperature > 0:
            raise ValueError(
                f"target_temperature={self.target_temperature}: rewards cannot be divided by it. Use a number above 0."
            )

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return ClippedSurrogate().needs(ctx)

    def distance_E(self, batch: Batch, stats: Stats, live_E: Tensor) -> Tensor:
        """(p_i − q_i)²."""
        score_E = batch.gather(batch.weight_N * stats.logp_N, "N", "E", "mean", where=batch.learn_N)
        p_E = _shares(batch, batch.reward_E / self.target_temperature, live_E)
        return (p_E - _shares(batch, score_E, live_E)) ** 2

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        live_E = batch.gather(batch.learn_N, "N", "E", "any") & batch.judged_E
        over_E = live_E
        if not self.equal_groups:
            varied_G = batch.gather(batch.reward_E, "E", "G", "std", where=batch.judged_E) > 0
            over_E = live_E & batch.spread(varied_G, "G", "E")
        surrogate = ClippedSurrogate(self.clip_low, self.clip_high, mean=self.mean)(ctx, batch, stats)
        value_E = -self.distance_E(batch, stats, live_E)
        return [*surrogate, Term("match", value_E, over_E, "group", coef=self.match_coef, at="E", additive=False)]


def _shares(batch: Batch, x_E: Tensor, where: Tensor) -> Tensor:
    """exp(x_i) / Σ_j exp(x_j) inside each group; 0 outside `where`."""
    x_E = torch.where(where, x_E, torch.zeros_like(x_E))
    total_E = batch.spread(batch.gather(x_E, "E", "G", "logsumexp", where=where), "G", "E")
    return torch.where(where, torch.exp(torch.where(where, x_E - total_E, x_E)), torch.zeros_like(x_E))


DMPO = GRPO.but(
    name="dmpo",
    paper="arXiv:2605.19461",
    objective=MatchDistribution(),
    penalties=(),
    breaks={"equal_rewards": "Answers of equal reward are drawn to equal probability."},
)
