"""What is maximised? Terms, per token first, aggregation last."""

from dataclasses import dataclass
from typing import Any, Protocol

from gruppo.data import Batch
from gruppo.pieces import surrogate
from gruppo.pieces.ratio import ratio
from gruppo.stages.context import Context
from gruppo.stages.occupant import Occupant
from gruppo.stages.readouts import Need, Stats, need
from gruppo.stages.terms import Term

NOW = need("logp", when="step")


class Objective(Protocol):
    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]: ...


@dataclass(frozen=True)
class PolicyGradient(Occupant):
    """Σ_t A_t log π(o_t): the score function, one step a batch (Williams 1992).

    `mean="episode_sum"`: summed over an episode's tokens, then averaged over episodes.
    """

    mean: Any = "episode_sum"
    takes = ("adv_N",)
    witness = {"mean": ["token", "sequence"]}

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        value_N = batch.weight_N * batch.adv_N * stats.logp_N
        return [Term("policy", value_N, batch.learn_N, self.mean)]


@dataclass(frozen=True)
class ClippedSurrogate(Occupant):
    """min(r A, clip(r, 1 − clip_low, 1 + clip_high) A), r = π/π_old; clip_dual > 0 bounds it by clip_dual · A below."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_dual: float = 0.0
    mean: Any = "sequence"
    takes = ("adv_N",)
    witness = {"clip_low": 0.6, "clip_high": 0.9, "clip_dual": 1.5, "mean": ["token", "sequence"]}

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, need("logp", "old"))

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        adv_N, r_N = batch.adv_N, ratio(stats.logp_N, batch.logp_old_N)
        value_N = surrogate.clipped(r_N, adv_N, self.clip_low, self.clip_high)
        if self.clip_dual:
            value_N = surrogate.dual_clipped(value_N, adv_N, self.clip_dual)
        clip_N = surrogate.clip_fraction(r_N.detach(), adv_N, self.clip_low, self.clip_high)
        return [
            Term("policy", batch.weight_N * value_N, batch.learn_N, self.mean),
            Term("clip_fraction", clip_N, batch.learn_N, "token", coef=0.0),
        ]


@dataclass(frozen=True)
class ValueLoss(Occupant):
    """−½ max((V − R)², (clip(V, V_old ± clip_value) − R)²) over policy tokens whose return is known: the critic's
    objective."""

    clip_value: float = 0.5
    takes = ("ret_N",)
    witness = {"clip_value": 0.05}

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("value", "critic", when="step"), need("value", "critic"))

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        old_N, target_N = batch.value_critic_N, batch.ret_N
        error_N = surrogate.clipped_value_error(stats.value_N, old_N, target_N, self.clip_value)
        known_N = batch.policy_N & batch.spread(batch.judged_E, "E", "N")
        return [Term("value", -error_N, known_N, "token")]
