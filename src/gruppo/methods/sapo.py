"""SAPO, soft adaptive policy optimisation (Gao et al. 2025, arXiv:2511.20347).

    J = 1/G Σ_i 1/|o_i| Σ_t f(r_it) A_i,      f(r) = 4/τ · σ(τ (r − 1)),   τ = 1 where A > 0, 1.05 where not
    dJ/dlog π = 4σ(1 − σ) r A: the gradient of GRPO at r = 1, fading smoothly on both sides

Differs from GRPO: a soft gate replaces the clip. It fades faster where A is negative (a larger τ), because pushing one
token down lifts many others; no KL. A batch has four updates: with a single one every ratio is 1 and this is GRPO
without KL. τ → 0 removes the gate and leaves r A.
"""

from dataclasses import dataclass
from typing import Any

from gruppo.data import Batch
from gruppo.methods.grpo import GRPO
from gruppo.pieces import surrogate
from gruppo.pieces.ratio import ratio
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values, setting
from gruppo.stages.objective import NOW, OLD
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class SoftGate(Occupant):
    """4/τ · σ(τ (r − 1)) A, r = π/π_old, with τ = tau_pos where A > 0, else tau_neg."""

    tau_pos: float = setting(1.0, above=0, witness=3.0)
    tau_neg: float = setting(1.05, above=0, witness=3.0)
    mean: Any = setting("sequence", above=0)
    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.learn_N, self.mean)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        r_N = ratio(stats.logp_N, batch.logp_old_N)
        value_N = surrogate.soft_gated(r_N, batch.adv_N, self.tau_pos, self.tau_neg)
        return {"policy": batch.weight_N * value_N}


SAPO = GRPO.but(
    name="sapo",
    paper="arXiv:2511.20347",
    checked=(
        "Compared with verl core_algos.py, compute_policy_loss_sapo, TRL grpo_trainer.py, loss_type sapo, and the "
        "documentation of ms-swift: formula, temperatures and the mean per sequence are the same in all three. Of "
        "the paper itself the abstract was read. Four updates a batch are ours."
    ),
    confidence="code",
    objective=SoftGate(tau_pos=1.0, tau_neg=1.05, mean="sequence"),
    penalties=(),
    update=Passes(epochs=1, minibatches=4),
)
