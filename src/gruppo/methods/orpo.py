"""ORPO (Hong et al. 2024, arXiv:2403.07691).

    a(y) = 1/|y| Σ_t log π(y_t),   logit(y) = a − log(1 − e^a)
    J = mean_t log π(y_w,t) + λ · mean over pairs of log σ(logit(y_w) − logit(y_l))

Differs from DPO: no reference. The chosen answers are learned by likelihood, and the odds ratio pushes the rejected
ones away. The likelihood is over the tokens of the chosen answers, each answer once. a is kept below −1e-6, because at
probability 1 the odds are infinite. The implicit reward is a(y).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.dpo import DPO
from gruppo.pieces.preference import bradley_terry, log_odds
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, setting
from gruppo.stages.objective import NOW
from gruppo.stages.recorded import answer_N
from gruppo.stages.relations import answered_E, averaged, pair_terms, pair_values


@dataclass(frozen=True)
class OddsRatio(Occupant):
    """Mean log-likelihood of chosen answers + odds_coef · log σ(log odds ratio)."""

    odds_coef: float = setting(0.1, low=0, witness=1.0)
    mean: Any = setting("token", above=0, added=True)
    reads = ("win_P", "lose_P", "expert")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def implicit_E(self, batch: Batch, stats: Stats) -> Tensor:
        return averaged(batch, stats.logp_N)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        live_P = batch.pairs.both(answered_E(batch))
        chosen_E = torch.zeros_like(batch.judged_E).index_fill(0, batch.pairs.win_P[live_P], True)
        chosen_N = batch.spread(chosen_E, "E", "N") & answer_N(batch)
        return [Term("likelihood", chosen_N, self.mean), *pair_terms(live_P, coef=self.odds_coef)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        mean_E = self.implicit_E(batch, stats)
        value_P = bradley_terry(batch.pairs.gap(log_odds(mean_E)))
        return {"likelihood": batch.weight_N * stats.logp_N, **pair_values(batch, value_P, mean_E)}


ORPO = DPO.but(
    name="orpo",
    paper="arXiv:2403.07691",
    checked=(
        "Compared with TRL 1.16, experimental/orpo/orpo_trainer.py, whose odds ratio gives the same numbers: λ = "
        "0.1 (there `beta`), mean log-probability of an answer. The likelihood here is that of the tokens of "
        "chosen answers, each answer once; TRL's also covers the prompt."
    ),
    confidence="code",
    objective=OddsRatio(odds_coef=0.1),
)
