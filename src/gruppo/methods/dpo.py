"""DPO (Rafailov et al. 2023, arXiv:2305.18290).

    r(y) = β Σ_t (log π(y_t) − log π_ref(y_t)),      J = mean over pairs of log σ(r(y_w) − r(y_l))

Learns from pairs: y_w was preferred to y_l. Differs from REINFORCE: no sampling and no advantage; the reward is the
one that the policy itself implies, against a frozen reference, so nothing has to be scored. The answers are recorded
in the tasks (a preference file, `task=preference`); with `method.rollout=group` pairs are made on the fly, the best of
a sampled group against its worst. `smoothing` ε > 0 is cDPO (Mitchell 2023): (1 − ε) log σ(h) + ε log σ(−h).
Checked against TRL 1.16 trainer/dpo_trainer.py (loss_type sigmoid): log-probabilities are summed over the completion,
its eos included; β = 0.1. The paper's learning rate is 1e-6; the tiny policy takes the run's 1e-4.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.reinforce import REINFORCE
from gruppo.pieces.preference import bradley_terry
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, need, setting
from gruppo.stages.objective import NOW
from gruppo.stages.recorded import Recorded
from gruppo.stages.relations import PairUp, answered_E, pair_terms, pair_values, summed


@dataclass(frozen=True)
class DirectPreference(Occupant):
    """log σ(r_w − r_l), r = β Σ_t (log π − log π_ref)."""

    beta: float = setting(0.1, witness=0.5)
    smoothing: float = setting(0.0, witness=0.1)
    mean: Any = setting("token", added=True)
    reads = ("win_P", "lose_P", "expert")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, need("logp", "ref"))

    def implicit_E(self, batch: Batch, stats: Stats) -> Tensor:
        return self.beta * summed(batch, stats.logp_N - batch.logp_ref_N)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return pair_terms(batch.pairs.both(answered_E(batch)), self.mean)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        reward_E = self.implicit_E(batch, stats)
        value_P = bradley_terry(batch.pairs.gap(reward_E), self.smoothing)
        return pair_values(batch, value_P, reward_E)


DPO = REINFORCE.but(
    name="dpo",
    paper="arXiv:2305.18290",
    rollout=Recorded(),
    credit=PairUp(),
    objective=DirectPreference(beta=0.1),
)
