"""IPO (Azar et al. 2023, arXiv:2310.12036).

    h = 1/|y_w| Σ_t log π/π_ref (y_w,t) − 1/|y_l| Σ_t log π/π_ref (y_l,t),      J = − mean over pairs of (h − 1/(2β))²

Differs from DPO: a squared error replaces log σ, so the gap is drawn to 1/(2β) and no further, even when a preference
is certain; beyond the target the gradient changes sign. Log-ratios are averaged over tokens. The paper writes τ for β.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.dpo import DPO
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, need, setting
from gruppo.stages.objective import NOW
from gruppo.stages.relations import answered_E, averaged, pair_terms, pair_values


@dataclass(frozen=True)
class IdentityPreference(Occupant):
    """−(h − 1/(2β))², h the mean log-ratio of the chosen answer minus that of the rejected one."""

    beta: float = setting(0.1, above=0, witness=0.5)
    mean: Any = setting("token", above=0, added=True)
    reads = ("win_P", "lose_P", "expert")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, need("logp", "ref"))

    def implicit_E(self, batch: Batch, stats: Stats) -> Tensor:
        return averaged(batch, stats.logp_N - batch.logp_ref_N)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return pair_terms(batch.pairs.both(answered_E(batch)), self.mean)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        reward_E = self.implicit_E(batch, stats)
        value_P = -((batch.pairs.gap(reward_E) - 1.0 / (2.0 * self.beta)) ** 2)
        return pair_values(batch, value_P, reward_E)


IPO = DPO.but(
    name="ipo",
    paper="arXiv:2310.12036",
    checked=(
        "Compared with TRL 1.16, trainer/dpo_trainer.py (loss_type ipo). The paper writes sums of log-ratios over "
        "tokens; TRL averages them, as here, and says that the authors confirmed it. The default β = 0.1 is "
        "recalled as TRL's."
    ),
    confidence="code",
    objective=IdentityPreference(beta=0.1),
)
