"""GMPO, geometric-mean policy optimisation (Zhao et al. 2025, arXiv:2507.20673).

    l_it = log π(o_it) − log π_old(o_it),      c_it = min(l_it, 0.4) if A_i > 0, else max(l_it, −0.4)
    J = 1/G Σ_i A_i exp( 1/|o_i| Σ_t c_it )

Differs from GRPO: the geometric mean of a response's token ratios replaces their arithmetic mean, so one extreme token
weighs little; hence the wider clip, (e^−0.4, e^0.4). No KL. Differs from GSPO: tokens are clipped one by one, before
the mean.

There are four updates per batch: with a single one every ratio is 1, and the gradient is GRPO's.
"""

from dataclasses import dataclass
from typing import Any

from gruppo.data import Batch
from gruppo.methods.grpo import GRPO
from gruppo.pieces import surrogate
from gruppo.pieces.ratio import geometric_by_token, log_ratio
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, setting
from gruppo.stages.objective import NOW, OLD
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class GeometricMean(Occupant):
    """A · exp(mean_t c_t), c_t = min(log r_t, log_clip_high) if A > 0, else max(log r_t, −log_clip_low)."""

    log_clip_low: float = setting(0.4, low=0, witness=0.05)
    log_clip_high: float = setting(0.4, low=0, witness=0.05)
    mean: Any = setting("sequence", above=0, added=True)
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.learn_N, self.mean), Term("clip_fraction", batch.learn_N, coef=0.0)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        adv_N, learn_N = batch.adv_N, batch.learn_N
        log_N = log_ratio(stats.logp_N, batch.logp_old_N)
        kept_N = surrogate.clipped_log(log_N, adv_N, self.log_clip_low, self.log_clip_high)
        ratio_N = geometric_by_token(kept_N, batch.level("N", "S"), learn_N)
        return {"policy": batch.weight_N * ratio_N * adv_N, "clip_fraction": (kept_N != log_N).to(log_N.dtype)}


GMPO = GRPO.but(
    name="gmpo",
    paper="arXiv:2507.20673",
    checked=(
        "Compared with verl core_algos.py, compute_policy_loss_geo_mean, with verl's examples/gmpo_trainer (clip 0.4, "
        "group-normalised advantages, no KL, four minibatches), and with TRL trl/experimental/gmpo: all three have the "
        "same formula. Of the paper the abstract was read, and the equation as TRL quotes it. verl turns the token "
        "weights of a sampler correction into their geometric mean; here each stays on the gradient of its own token."
    ),
    confidence="code",
    objective=GeometricMean(log_clip_low=0.4, log_clip_high=0.4),
    penalties=(),
    update=Passes(epochs=1, minibatches=4),
)
