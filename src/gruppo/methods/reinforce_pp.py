"""REINFORCE++ (Hu et al. 2025, arXiv:2501.03262).

    r_t = 1[t = T] R − β (log π_old − log π_ref)_t,      G_t = r_t + γ G_{t+1}
    A = whiten(G) = (G − mean) / sqrt(var + 1e-8)      over all tokens of the batch
    J = mean_t min(r_t A_t, clip(r_t, 1−0.2, 1+0.2) A_t)

Differs from REINFORCE: the return is whitened over the whole batch instead of compared with a baseline, the KL to the
reference is part of the reward of each token, and the ratio is clipped. It needs no groups and works with samples=1.
Differs from PPO: no critic; it is PPO with V = 0 and λ = 1. A batch of one token has A = 0. Observation tokens are not
steps of the recursion.
"""

from dataclasses import dataclass

from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.reinforce import REINFORCE
from gruppo.stages import Context, Need, Occupant, need, setting
from gruppo.stages.credit import judged_in_time, return_to_go, whitened
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class WhitenedReturn(Occupant):
    """Return-to-go of each token, its reward less kl_coef (log π_old − log π_ref), whitened over the batch.

    Of several agents each has its own returns, and is whitened for itself.
    """

    gamma: float = setting(1.0, low=0, high=1)
    kl_coef: float = setting(0.0, low=0, witness=0.5)
    writes = ("adv_N",)
    ignores = ("shift", "scale")  # at gamma = 1; a discount shrinks a shift for early tokens

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("logp", "old"), need("logp", "ref")) if self.kl_coef else ()

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        mine = judged_in_time(batch)
        return whitened(batch, mine, return_to_go(batch, mine, self.gamma, self.kl_coef), by_agent=True)


REINFORCE_PP = REINFORCE.but(
    name="reinforce_pp",
    paper="arXiv:2501.03262",
    checked=(
        "Compared with verl core_algos.py, compute_reinforce_plus_plus_outcome_advantage and masked_whiten, and "
        "with OpenRLHF experience_maker.py, the authors' trainer. The variance uses n - 1 as in verl (OpenRLHF: "
        "n). β = 0.001 is verl's default (OpenRLHF: 0.01). Observations are no step of the recursion; verl drops "
        "rewards there (its issue 7278). Two minibatches are ours."
    ),
    confidence="code",
    credit=WhitenedReturn(gamma=1.0, kl_coef=0.001),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="token"),
    update=Passes(epochs=1, minibatches=2),
)
