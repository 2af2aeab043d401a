"""LLDS, against lazy likelihood displacement (Deng et al. 2025, arXiv:2512.04220, "On GRPO collapse in Search-R1").

    d_t = log π_old(o_t) − log π(o_t),      g_c = 1[ Σ_{t ∈ c, A_t ≥ 0} d_t > 0 ]      c: an action (or an answer)
    J = J_GRPO − λ · 1/Σ|o_i| Σ_i Σ_t g_c(t) max(d_t, 0) 1[A_t ≥ 0],      λ = 0.2

Differs from GRPO: a penalty against lazy likelihood displacement, in which answers that are not bad lose likelihood
over the updates of a batch until gradients explode. It applies to tokens that became less likely, in actions that
became less likely as a whole, where A ≥ 0; answers without advantage (a group of equal rewards) are included. KL
coefficient 0.001, means over tokens. The penalty acts from the second update of a batch on, since π = π_old before;
hence four minibatches. An action is a turn, in single-turn tasks the answer. Decreases below 1e-5 are rounding between
two forward passes and are ignored: the slope of max(d, 0) is 1 however small d is.
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
ROUNDED = 1e-5  # smaller decreases of log π are rounding


@dataclass(frozen=True)
class HoldLikelihood(Occupant):
    """−hold_coef · max(log π_old − log π, 0) on tokens with A ≥ 0 whose turn or answer (`gate`) became less likely."""

    hold_coef: Sched = setting(0.2, low=0, witness=0.9)
    gate: Gate = "turn"
    mean: Any = setting("token", above=0, added=True)
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        inside = self.gate == "turn"  # a turn lies in one sequence, an answer may span several
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
    checked=(
        "Compared with vengdeng/LLDS-On-Group-Relative-Policy-Optimization-Collapse-in-Search-R1: "
        "verl/workers/actor/dp_actor.py (chunk_noreduce, and the gate over whole answers next to it) and "
        "train_grpo_nqhot.sh, which has λ = 0.2, a KL of 0.001 and the mean over tokens; the paper is said to have "
        "λ = 0.1. There an action is a span between tool outputs, here a turn. The code's lower weight on the span "
        "of the final answer (variant MA) is left out. Four minibatches and the tolerance of 1e-5 are ours."
    ),
    confidence="code",
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="token"),
    penalties=(ReferenceKL(kl_coef=0.001, mean="token"), HoldLikelihood(hold_coef=0.2)),
    update=Passes(epochs=1, minibatches=4),
)
