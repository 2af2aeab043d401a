"""DMPO, distribution-matching policy optimisation (Li et al. 2026, arXiv:2605.19461, "Beyond mode collapse").

    p_i = exp(R_i/α) / Σ_j exp(R_j/α),      q_i = exp(l_i) / Σ_j exp(l_j),   l_i = mean_t log π(o_it)
    J = J_GRPO − λ 1/G Σ_i (p_i − q_i)²,      α = 1/15, λ = 2

Differs from GRPO: a second term pulls the policy's distribution over the responses of a group towards a softmax of
their rewards. Responses of equal reward are pulled to equal probability, so that the mode found first does not take
everything. No KL.

p has no gradient. Both softmaxes run over the responses of a group that are trained on; a single one has p = q = 1. In
a group of equal rewards p is flat and the responses are made equally likely, unless `equal_groups=False`. α is in units
of reward: 1/15 suits rewards from 0 to 1. The term couples a group, so it is not additive over micro-batches.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, setting
from gruppo.stages.objective import NOW


@dataclass(frozen=True)
class MatchDistribution(Occupant):
    """−match_coef · mean_i (p_i − q_i)² over the responses of a group.

    p is the softmax of R / target_temperature, q that of the mean log-probabilities.
    equal_groups  also match in groups of equal reward, where p is flat
    """

    match_coef: float = setting(2.0, low=0)
    target_temperature: float = setting(1.0 / 15.0, above=0, witness=1.0)
    equal_groups: bool = True
    mean: Any = setting("group", above=0)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        over_E = learned_E(batch)
        if not self.equal_groups:
            varied_G = batch.gather(batch.reward_E, "E", "G", "std", where=batch.judged_E) > 0
            over_E = over_E & batch.spread(varied_G, "G", "E")
        return [Term("match", over_E, self.mean, coef=self.match_coef, at="E", additive=False)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        live_E = learned_E(batch)
        score_E = batch.gather(batch.weight_N * stats.logp_N, "N", "E", "mean", where=batch.learn_N)
        p_E = _shares(batch, batch.reward_E / self.target_temperature, live_E)
        return {"match": -((p_E - _shares(batch, score_E, live_E)) ** 2)}


def learned_E(batch: Batch) -> Tensor:
    """Judged responses with a token to train on."""
    return batch.gather(batch.learn_N, "N", "E", "any") & batch.judged_E


def _shares(batch: Batch, x_E: Tensor, where: Tensor) -> Tensor:
    """The softmax of x within each group; 0 outside `where`."""
    x_E = torch.where(where, x_E, torch.zeros_like(x_E))
    total_E = batch.spread(batch.gather(x_E, "E", "G", "logsumexp", where=where), "G", "E")
    return torch.where(where, torch.exp(torch.where(where, x_E - total_E, x_E)), torch.zeros_like(x_E))


DMPO = GRPO.but(
    name="dmpo",
    paper="arXiv:2605.19461",
    checked=(
        "No code of the authors was available. The equations are those of notes on the paper; α and λ are the values "
        "that a reimplementation for TRL gives as the paper's. A port to verl uses advantages for R, and λ = 1. "
        "Whether the paper keeps GRPO's KL is not known; it is off here."
    ),
    confidence="notes",
    objective=(*GRPO.objective, MatchDistribution()),
    penalties=(),
    version=2,  # 1 had both terms in one objective
    breaks={"equal_rewards": "Answers of equal reward are drawn to equal probability."},
)
