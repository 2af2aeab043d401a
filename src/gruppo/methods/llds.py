"""LLDS, against lazy likelihood displacement (Deng et al. 2025, arXiv:2512.04220, "On GRPO collapse in Search-R1").

    d_t = log π_old(o_t) − log π(o_t),      g_c = 1[ Σ_{t ∈ c, A_t ≥ 0} d_t > 0 ]      c: an action (or an answer)
    J = J_GRPO − λ · 1/Σ|o_i| Σ_i Σ_t g_c(t) max(d_t, 0) 1[A_t ≥ 0],      λ = 0.2

Answers that are not bad lose likelihood over the updates of a batch, and then the gradients explode. The penalty holds
the tokens that fell, in actions that fell as a whole, of answers with A ≥ 0; answers without advantage (a group of
equal rewards) are held too. Differs from GRPO: this penalty; KL of 0.001 and mean over tokens as in the script. It
acts from the second update of a batch on, since before it π = π_old; so there are four. Checked against vengdeng/LLDS-
On-Group-Relative-Policy-Optimization-Collapse-in-Search-R1, verl/workers/actor/dp_actor.py (chunk_noreduce, and the
gate of whole answers beside it) and train_grpo_nqhot.sh (λ = 0.2; the paper is said to have 0.1). An action is a turn
here, there a span between tool outputs; in single-turn tasks it is the answer. The code's lower weight on the final
answer's span (variant MA) is not here. A fall of less than 1e-5 is the rounding of two forwards and is no fall: the
slope of max(d, 0) is 1 however small d is.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from gruppo.data import Batch
from gruppo.methods.grpo import GRPO
from gruppo.pieces.stop import stop
from gruppo.stages import Context, Need, Occupant, Sched, Stats, Term, Values, setting
from gruppo.stages.objective import NOW, OLD, ClippedSurrogate
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.update import Passes

Gate = Literal["turn", "answer"]
ROUNDED = 1e-5


@dataclass(frozen=True)
class HoldLikelihood(Occupant):
    """−hold_coef · max(log π_old − log π, 0) on tokens with A ≥ 0 whose turn, or whole answer, became less likely."""

    hold_coef: Sched = setting(0.2, witness=0.9)
    gate: Gate = "turn"
    mean: Any = setting("token", added=True)
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        inside = self.gate == "turn"  # a turn lies in one sequence, an answer may have several
        return [Term("hold", batch.policy_N, self.mean, coef=ctx.at(self.hold_coef), additive=inside)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        level = "K" if self.gate == "turn" else "E"
        fall_N, hold_N = batch.logp_old_N - stats.logp_N, batch.policy_N & (batch.adv_N >= 0)
        fell_X = batch.gather(stop(fall_N), "N", level, "sum", where=hold_N) > 0
        held_N = hold_N & batch.spread(fell_X, level, "N") & (stop(fall_N) > ROUNDED)
        return {"hold": torch.where(held_N, -fall_N, torch.zeros_like(fall_N))}


LLDS = GRPO.but(
    name="llds",
    paper="arXiv:2512.04220",
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="token"),
    penalties=(ReferenceKL(kl_coef=0.001, mean="token"), HoldLikelihood(hold_coef=0.2)),
    update=Passes(epochs=1, minibatches=4),
)
