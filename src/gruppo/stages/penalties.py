"""What keeps the policy in bounds? Terms that are added to the objective, over all policy tokens."""

from dataclasses import dataclass
from typing import Any, Literal

from gruppo.data import Batch
from gruppo.pieces.divergence import k1, k2, k3
from gruppo.pieces.stop import stop
from gruppo.stages.context import Context
from gruppo.stages.objective import NOW
from gruppo.stages.occupant import Occupant, setting
from gruppo.stages.readouts import Need, Stats, need
from gruppo.stages.schedule import Sched
from gruppo.stages.terms import Term, Values

ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}
IN_FULL = need("kl", against="ref", when="step")


@dataclass(frozen=True)
class ReferenceKL(Occupant):
    """−kl_coef · KL(π ‖ π_ref), with gradient; `estimator` says how it is measured (gruppo.pieces.divergence).

    k1    log π − log π_ref. Its mean gradient is 0, so as a penalty it is only logged; in the reward it has an effect
    k2    ½ (log π − log π_ref)²: the gradient of KL(π ‖ π_ref)
    k3    e^d − d − 1, d = log π_ref − log π: the gradient of KL(π_ref ‖ π)
    k1+, k3+  the value of k1 or k3 with the gradient of k2 (verl's "+" form: straight-through)
    full  the exact sum over the vocabulary, without sampling noise; needs a forward pass of the reference at every
          optimiser step instead of once per batch
    """

    kl_coef: Sched = setting(0.04, low=0, witness=0.5)
    mean: Any = setting("sequence", above=0)
    estimator: Literal["k1", "k2", "k3", "k1+", "k3+", "full"] = setting("k3", added=True)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (IN_FULL,) if self.estimator == "full" else (NOW, need("logp", "ref"))

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("kl_ref", batch.policy_N, self.mean, coef=ctx.at(self.kl_coef))]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        if self.estimator == "full":
            return {"kl_ref": -stats[IN_FULL.column]}
        kl_N = ESTIMATORS[self.estimator.removesuffix("+")](stats.logp_N, batch.logp_ref_N)
        if self.estimator.endswith("+"):
            slope_N = k2(stats.logp_N, batch.logp_ref_N)
            kl_N = stop(kl_N) + slope_N - stop(slope_N)
        return {"kl_ref": -kl_N}


@dataclass(frozen=True)
class EntropyBonus(Occupant):
    """+entropy_coef · H(π(· | s_t)), with gradient."""

    entropy_coef: Sched = setting(0.01, witness=0.5)
    mean: Any = setting("token", above=0, added=True)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("entropy", when="step"),)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("entropy_bonus", batch.policy_N, self.mean, coef=ctx.at(self.entropy_coef))]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {"entropy_bonus": stats.entropy_N}
