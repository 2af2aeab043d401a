"""What keeps the policy in bounds? Terms that are added to the objective; they count all policy tokens."""

from dataclasses import dataclass
from typing import Any, Literal

from gruppo.data import Batch
from gruppo.pieces.divergence import k1, k2, k3
from gruppo.stages.context import Context
from gruppo.stages.names import nearest
from gruppo.stages.occupant import Occupant, added
from gruppo.stages.readouts import Need, Stats, need
from gruppo.stages.schedule import Sched
from gruppo.stages.terms import Term

ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}
IN_FULL = need("kl", against="ref", when="step")


@dataclass(frozen=True)
class ReferenceKL(Occupant):
    """−kl_coef · KL(π ‖ π_ref), with gradient; `estimator` says by what (see gruppo.pieces.divergence).

    k1    log π − log π_ref. As a loss its mean gradient is 0: for the log; as a part of the reward it does teach
    k2    ½ (log π − log π_ref)²: the gradient of KL(π ‖ π_ref)
    k3    e^d − d − 1, d = log π_ref − log π: the gradient of KL(π_ref ‖ π)
    full  the sum over the vocabulary, exactly: no noise, also for tokens that were not sampled; one forward of the
          reference at every optimiser step instead of once a batch
    """

    kl_coef: Sched = 0.04
    mean: Any = "sequence"
    estimator: Literal["k1", "k2", "k3", "full"] = added("k3")
    witness = {"kl_coef": 0.5, "mean": ["token", "sequence"], "estimator": ["k1", "k2", "k3", "full"]}

    def __post_init__(self) -> None:
        known = (*ESTIMATORS, "full")
        if self.estimator not in known:
            raise ValueError(
                f"estimator={self.estimator!r} is no way to measure the KL{nearest(self.estimator, known)}. Use one of "
                f"{', '.join(known)}."
            )

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (IN_FULL,) if self.estimator == "full" else (need("logp", when="step"), need("logp", "ref"))

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        if self.estimator == "full":
            kl_N = stats[IN_FULL.column]
        else:
            kl_N = ESTIMATORS[self.estimator](stats.logp_N, batch.logp_ref_N)
        return [Term("kl_ref", -kl_N, batch.policy_N, self.mean, coef=ctx.at(self.kl_coef))]


@dataclass(frozen=True)
class EntropyBonus(Occupant):
    """+entropy_coef · H(π(· | s_t)), with gradient."""

    entropy_coef: Sched = 0.01
    witness = {"entropy_coef": 0.5}

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("entropy", when="step"),)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        return [Term("entropy_bonus", stats.entropy_N, batch.policy_N, "token", coef=ctx.at(self.entropy_coef))]
