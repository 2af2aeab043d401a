"""SimPO (Meng et al. 2024, arXiv:2405.14734).

    r(y) = β/|y| Σ_t log π(y_t),      J = mean over pairs of log σ(r(y_w) − r(y_l) − γ)

Differs from DPO: no reference; the implicit reward is the mean log-probability, which is also what sampling goes by,
and it has to win by a margin γ. Checked against TRL 1.16 experimental/cpo/cpo_trainer.py (loss_type simpo, no
behaviour cloning) and against the authors' README, princeton-nlp/SimPO: β = 2 and γ/β = 0.5 are their setting for
Llama3-Base and their advice to begin with; TRL's defaults are β = 0.1 and γ = 0.5. The formula is sure (TRL's loss has
the same numbers), the defaults are a starting point: the authors advise β up to 10.
"""

from dataclasses import dataclass

from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.dpo import DPO
from gruppo.pieces.preference import bradley_terry
from gruppo.stages import Context, Need, Occupant, Stats, Term
from gruppo.stages.objective import NOW
from gruppo.stages.relations import answered_E, averaged, told


@dataclass(frozen=True)
class MeanPreference(Occupant):
    """log σ(r_w − r_l − target_margin), r = β · mean_t log π."""

    beta: float = 2.0
    target_margin: float = 1.0
    takes = ("win_P", "lose_P")
    handles = frozenset({"expert"})
    witness = {"beta": 0.5, "target_margin": 0.2}

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def implicit_E(self, batch: Batch, stats: Stats) -> Tensor:
        return self.beta * averaged(batch, stats.logp_N)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        reward_E, live_P = self.implicit_E(batch, stats), batch.pairs.both(answered_E(batch))
        value_P = bradley_terry(batch.pairs.gap(reward_E) - self.target_margin)
        return [Term("preference", value_P, live_P, at="P", additive=False), *told(batch, reward_E, live_P)]


SIMPO = DPO.but(name="simpo", paper="arXiv:2405.14734", objective=MeanPreference(beta=2.0, target_margin=1.0))
