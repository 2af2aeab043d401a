"""GSPO (Zheng et al. 2025, arXiv:2507.18071).

    s_i = (π(o_i) / π_old(o_i))^(1/|o_i|) = exp( 1/|o_i| Σ_t log r_it )
    J = 1/G Σ_i min(s_i A_i, clip(s_i, 1−3e-4, 1+4e-4) A_i),      written per token: s_it = sg(s_i) · π_it / sg(π_it)

Differs from GRPO: one importance ratio for a whole response, the geometric mean of its token ratios, so that a response
is clipped as a whole; a clip three orders of magnitude narrower, because the mean of many log-ratios is small; no KL.

With a single update per batch s = 1 and nothing is clipped. In short responses s varies widely: on the built-in
addition task (3.5 tokens) the clip stops 65 % of the tokens in the first steps, that is most of what follows the first
update of a batch, and 14 % over 60 steps; it learns all the same.
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
class SequenceClipped(Occupant):
    """min(s A, clip(s, 1 − clip_low, 1 + clip_high) A), s the geometric mean of a sequence's token ratios."""

    clip_low: float = setting(3e-4, low=0, high=1, witness=0.6)
    clip_high: float = setting(4e-4, low=0, witness=0.9)
    mean: Any = setting("sequence", above=0, added=True)
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.learn_N, self.mean), Term("clip_fraction", batch.learn_N, coef=0.0)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        adv_N, learn_N = batch.adv_N, batch.learn_N
        s_N = geometric_by_token(log_ratio(stats.logp_N, batch.logp_old_N), batch.level("N", "S"), learn_N)
        value_N = surrogate.clipped(s_N, adv_N, self.clip_low, self.clip_high)
        clip_N = surrogate.clip_fraction(s_N.detach(), adv_N, self.clip_low, self.clip_high)
        return {"policy": batch.weight_N * value_N, "clip_fraction": clip_N}


GSPO = GRPO.but(
    name="gspo",
    paper="arXiv:2507.18071",
    checked=(
        "Compared with verl core_algos.py, compute_policy_loss_gspo: the token form, with the mean per sequence "
        "whatever aggregation is configured. The clips, the absence of a KL and four updates per batch are as in "
        "verl's examples/gspo_trainer and TRL's paper index (section 5.1 of the paper). verl bounds the log-ratio by "
        "10, here it is 20."
    ),
    confidence="code",
    objective=SequenceClipped(clip_low=3e-4, clip_high=4e-4),
    penalties=(),
    update=Passes(epochs=1, minibatches=4),
)
