"""SimPO (Meng et al. 2024, arXiv:2405.14734).

    r(y) = β/|y| Σ_t log π(y_t),      J = mean over pairs of log σ(r(y_w) − r(y_l) − γ)

Differs from DPO: no reference. The implicit reward is the mean log-probability, which also guides generation, and it
has to win by a margin γ. The defaults are a starting point: the authors advise β up to 10.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.dpo import DPO
from gruppo.pieces.preference import bradley_terry
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, setting
from gruppo.stages.objective import NOW
from gruppo.stages.relations import answered_E, averaged, pair_terms, pair_values


@dataclass(frozen=True)
class MeanPreference(Occupant):
    """log σ(r_w − r_l − target_margin), r = β · mean_t log π."""

    beta: float = setting(2.0, above=0, witness=0.5)
    target_margin: float = setting(1.0, witness=0.2)
    mean: Any = setting("token", above=0, added=True)
    reads = ("win_P", "lose_P", "expert")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def implicit_E(self, batch: Batch, stats: Stats) -> Tensor:
        return self.beta * averaged(batch, stats.logp_N)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return pair_terms(batch.pairs.both(answered_E(batch)), self.mean)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        reward_E = self.implicit_E(batch, stats)
        value_P = bradley_terry(batch.pairs.gap(reward_E) - self.target_margin)
        return pair_values(batch, value_P, reward_E)


SIMPO = DPO.but(
    name="simpo",
    paper="arXiv:2405.14734",
    checked=(
        "Compared with TRL 1.16, experimental/cpo/cpo_trainer.py (loss_type simpo, no behaviour cloning), and with "
        "the authors' README, princeton-nlp/SimPO: β = 2 and γ/β = 0.5 are their setting for Llama3-Base and their "
        "advice to begin with; TRL's defaults are β = 0.1 and γ = 0.5. The formula is certain (TRL's loss gives "
        "the same numbers); the defaults are a starting point, since the authors advise β up to 10."
    ),
    confidence="code",
    objective=MeanPreference(beta=2.0, target_margin=1.0),
)
