"""What keeps the policy in bounds? Terms that are added to the objective; they count all policy tokens."""

from dataclasses import dataclass
from typing import Any

from gruppo.data import Batch
from gruppo.pieces.divergence import k3
from gruppo.stages.context import Context
from gruppo.stages.occupant import Occupant
from gruppo.stages.readouts import Need, Stats, need
from gruppo.stages.schedule import Sched
from gruppo.stages.terms import Term


@dataclass(frozen=True)
class ReferenceKL(Occupant):
    """−kl_coef · KL(π ‖ π_ref) by the k3 estimator, with gradient."""

    kl_coef: Sched = 0.04
    mean: Any = "sequence"
    witness = {"kl_coef": 0.5, "mean": ["token", "sequence"]}

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("logp", when="step"), need("logp", "ref"))

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        kl_N = k3(stats.logp_N, batch.logp_ref_N)
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
