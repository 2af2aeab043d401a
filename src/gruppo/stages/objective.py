"""What is maximised? A chain of objectives: each declares its terms, then computes their values."""

from dataclasses import dataclass
from typing import Any, Protocol

from gruppo.data import Batch
from gruppo.pieces import surrogate
from gruppo.pieces.ratio import ratio
from gruppo.stages.context import Context
from gruppo.stages.occupant import Occupant, setting
from gruppo.stages.readouts import Need, Stats, need
from gruppo.stages.schedule import Sched
from gruppo.stages.terms import Term, Values

NOW = need("logp", when="step")
OLD = need("logp", "old")


class Objective(Protocol):
    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        """The rows of each term, how they are averaged, and the coefficient; before statistics are known."""
        ...

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        """The value of each row of these terms, by name."""
        ...


@dataclass(frozen=True)
class PolicyGradient(Occupant):
    """Σ_t A_t log π(o_t): the likelihood-ratio gradient, for one optimiser step per batch (Williams 1992).

    `mean="episode_sum"`: summed over an episode's tokens, then averaged over episodes.
    """

    mean: Any = setting("episode_sum", above=0)
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW,)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.learn_N, self.mean)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {"policy": batch.weight_N * batch.adv_N * stats.logp_N}


@dataclass(frozen=True)
class ClippedSurrogate(Occupant):
    """min(r A, clip(r, 1 − clip_low, 1 + clip_high) A), r = π/π_old; clip_dual > 0 bounds it below by clip_dual · A."""

    clip_low: float = setting(0.2, low=0, high=1, witness=0.6)
    clip_high: float = setting(0.2, low=0, witness=0.9)
    clip_dual: float = setting(0.0, above=1, also=0, witness=1.5)
    mean: Any = setting("sequence", above=0)
    coef: Sched = setting(1.0, low=0, added=True)
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        policy = Term("policy", batch.learn_N, self.mean, coef=ctx.at(self.coef))
        return [policy, Term("clip_fraction", batch.learn_N, coef=0.0)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        adv_N, r_N = batch.adv_N, ratio(stats.logp_N, batch.logp_old_N)
        value_N = surrogate.clipped(r_N, adv_N, self.clip_low, self.clip_high)
        if self.clip_dual:
            value_N = surrogate.dual_clipped(value_N, adv_N, self.clip_dual)
        clip_N = surrogate.clip_fraction(r_N.detach(), adv_N, self.clip_low, self.clip_high)
        return {"policy": batch.weight_N * value_N, "clip_fraction": clip_N}


@dataclass(frozen=True)
class ValueLoss(Occupant):
    """The critic's objective: −½ max((V − R)², (clip(V, V_old ± clip_value) − R)²) over policy tokens with a known
    return."""

    clip_value: float = setting(0.5, low=0, witness=0.05)
    mean: Any = setting("token", above=0, added=True)
    reads = ("ret_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("value", "critic", when="step"), need("value", "critic"))

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("value", batch.policy_N & batch.spread(batch.judged_E, "E", "N"), self.mean)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        error_N = surrogate.clipped_value_error(stats.value_N, batch.value_critic_N, batch.ret_N, self.clip_value)
        return {"value": -error_N}
