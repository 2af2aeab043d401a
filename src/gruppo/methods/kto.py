"""KTO (Ethayarajh et al. 2024, arXiv:2402.01306).

    ρ(x, y) = Σ_t (log π − log π_ref),      z = max(0, mean of ρ(x', y) over mismatched pairs), not differentiated
    J = mean over answers of λ_D σ(β (ρ − z)) for good ones,  λ_U σ(β (z − ρ)) for bad ones     (less a constant)

Differs from DPO: no pairs. Each answer has its own label, and its utility is relative to a reference point z, an
estimate of KL(π ‖ π_ref) from answers under the prompt of another task (the view `mismatched`), with a stop-gradient. z
is computed over the optimiser step, however it is split into micro-batches; with a single prompt z = 0.

An answer is good if its reward exceeds the mean of its group: in a preference pair the chosen answer is good and the
rejected one bad. In a group of equal rewards an answer is good if its reward is at least `threshold`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, Use
from gruppo.methods.dpo import DPO
from gruppo.pieces.stop import stop
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, need, setting
from gruppo.stages.objective import NOW
from gruppo.stages.relations import answered_E, summed


@dataclass(frozen=True)
class GoodOrBad(Occupant):
    """Credit: `label_E` is 1 for good answers, −1 for bad ones; `other_E` says whether the step has another prompt.

    threshold  in a group of equal rewards, the reward from which on an answer is good
    """

    threshold: float = setting(0.5, witness=2.0)
    writes = ("label_E", "other_E")

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        groups, judged_E = batch.level("E", "G"), batch.judged_E
        varied_G = batch.gather(batch.reward_E, "E", groups, "std", where=judged_E) > 0
        mean_G = batch.gather(batch.reward_E, "E", groups, "mean", where=judged_E)
        # A reward equal to `threshold` is good; one equal to the group mean is not.
        good_E = torch.where(
            groups.spread(varied_G), batch.reward_E > groups.spread(mean_G), batch.reward_E >= self.threshold
        )
        label_E = torch.where(good_E, 1, -1) * (batch.learn_E & ~torch.isnan(batch.reward_E))
        lending_G = batch.gather(batch.learn_E & (batch.use_E == Use.LEARN), "E", groups, "any")
        return {"label_E": label_E, "other_E": (lending_G.sum() > 1).expand(len(label_E))}


@dataclass(frozen=True)
class ProspectUtility(Occupant):
    """λ_D σ(β (ρ − z)) for good answers, λ_U σ(β (z − ρ)) for bad ones; λ_D is good_coef, λ_U bad_coef."""

    beta: float = setting(0.1, above=0, witness=0.5)
    good_coef: float = setting(1.0, low=0, witness=2.0)
    bad_coef: float = setting(1.0, low=0, witness=2.0)
    mean: Any = setting("token", above=0, added=True)
    reads = ("label_E", "other_E", "expert")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        now, ref = (need("logp", when="step", view="mismatched"), need("logp", "ref", view="mismatched"))
        return (NOW, need("logp", "ref"), now, ref)

    def implicit_E(self, batch: Batch, stats: Stats) -> Tensor:
        return self.beta * summed(batch, stats.logp_N - batch.logp_ref_N)

    def reference_point(self, batch: Batch, stats: Stats) -> Tensor:
        """z; 0 if there is no other prompt. Episodes of use `apart` are in no statistic."""
        drift_E = summed(batch, stats.logp_mismatched_N - batch.logp_ref_mismatched_N)
        counted_E = batch.other_E & batch.judged_E & answered_E(batch)
        total = torch.where(counted_E, drift_E, torch.zeros_like(drift_E)).sum()
        return stop(torch.relu(total / counted_E.sum().clamp(min=1)))

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        live_E = answered_E(batch) & (batch.label_E != 0)
        return [
            Term("utility", live_E, self.mean, at="E", additive=False),
            Term("reference_point", live_E, coef=0.0, at="E", additive=False),
        ]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        reward_E, z = self.implicit_E(batch, stats), self.reference_point(batch, stats)
        good_E = batch.label_E > 0
        gap_E = reward_E - self.beta * z
        value_E = torch.where(
            good_E, self.good_coef * (torch.sigmoid(gap_E) - 1.0), self.bad_coef * (torch.sigmoid(-gap_E) - 1.0)
        )
        return {"utility": value_E, "reference_point": z.expand(len(value_E))}


KTO = DPO.but(
    name="kto",
    paper="arXiv:2402.01306",
    checked=(
        "Compared with TRL 1.16, trainer/kto_trainer.py: λ_D = λ_U = 1, β = 0.1. TRL computes z over a device's "
        "micro-batch and then averages; here z is that of the optimiser step. The paper advises λ_D n_D / (λ_U "
        "n_U) from 1 to 4/3. TRL reads labels from the data; deriving them from rewards, with `threshold`, is "
        "ours."
    ),
    confidence="code",
    credit=GoodOrBad(),
    objective=ProspectUtility(),
    breaks={"equal_rewards": "A label needs no comparison: answers that are all good, or all bad, are learned from."},
)
