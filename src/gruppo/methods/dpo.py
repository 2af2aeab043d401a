"""DPO (Rafailov et al. 2023, arXiv:2305.18290).

    r(y) = β Σ_t (log π(y_t) − log π_ref(y_t)),      J = mean over pairs of log σ(r(y_w) − r(y_l))

Differs from REINFORCE: no rollouts and no advantage. It learns from pairs in which y_w was preferred to y_l; the reward
is the one implied by the policy against a frozen reference, so nothing has to be scored.

The responses are recorded in the tasks (a preference file, `task=preference`). With `method.rollout=group` pairs are
made on the fly, the best of a sampled group against its worst. With h = r(y_w) − r(y_l), `smoothing` ε > 0 is cDPO
(Mitchell 2023), (1 − ε) log σ(h) + ε log σ(−h), and `loss="hinge"` is −max(0, 1 − h) (SLiC, arXiv:2305.10425). The two
cannot be combined.
"""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.reinforce import REINFORCE
from gruppo.pieces.preference import bradley_terry, hinge
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, need, setting
from gruppo.stages.objective import NOW
from gruppo.stages.recorded import Recorded
from gruppo.stages.relations import PairUp, answered_E, pair_terms, pair_values, summed


@dataclass(frozen=True)
class DirectPreference(Occupant):
    """log σ(h), h = r_w − r_l, r = beta Σ_t (log π − log π_ref); or the hinge −max(0, 1 − h).

    smoothing  ε: the preference is taken to be wrong with this probability, sigmoid only
    loss       sigmoid or hinge. For h = 0.4, −0.513 or −0.6; for h = 1.2, −0.263 or 0: past 1 the hinge is satisfied
    """

    beta: float = setting(0.1, above=0, witness=0.5)
    smoothing: float = setting(0.0, low=0, high=1, witness=0.1)
    mean: Any = setting("token", above=0, added=True)
    loss: Literal["sigmoid", "hinge"] = setting("sigmoid", added=True)
    reads = ("win_P", "lose_P", "expert")

    def wrong(self) -> str:
        return "" if self.loss == "sigmoid" or not self.smoothing else (
            f"loss={self.loss!r}, smoothing={self.smoothing}: only the sigmoid loss has smoothing, so it would be "
            "ignored. Use smoothing=0, or loss='sigmoid'."
        )  # fmt: skip

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, need("logp", "ref"))

    def implicit_E(self, batch: Batch, stats: Stats) -> Tensor:
        return self.beta * summed(batch, stats.logp_N - batch.logp_ref_N)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return pair_terms(batch.pairs.both(answered_E(batch)), self.mean)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        reward_E = self.implicit_E(batch, stats)
        gap_P = batch.pairs.gap(reward_E)
        value_P = hinge(gap_P) if self.loss == "hinge" else bradley_terry(gap_P, self.smoothing)
        return pair_values(batch, value_P, reward_E)


DPO = REINFORCE.but(
    name="dpo",
    paper="arXiv:2305.18290",
    checked=(
        "Compared with TRL 1.16 trainer/dpo_trainer.py, loss_type sigmoid: log-probabilities are summed over the "
        "completion, its eos included; β = 0.1. loss=hinge is its loss_type hinge, relu(1 - β Δ), read at commit "
        "f2cd57710 of July 2026. In that file label_smoothing serves the losses robust and exo_pair, among others, and "
        "neither sigmoid nor hinge; smoothing is the form of Mitchell's note. The paper's learning rate is 1e-6; the "
        "tiny policy takes the run's 1e-4."
    ),
    confidence="code",
    rollout=Recorded(),
    credit=PairUp(),
    objective=DirectPreference(beta=0.1),
)
