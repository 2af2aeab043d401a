"""HGPO, hierarchy-of-groups policy optimisation (He et al. 2026, arXiv:2602.22817).

    g_it = Σ_{u ≥ t} γ^{u−t} r_iu,   γ = 0.95                  the return from turn t on
    a_k = (g_it − mean g) / (std g + ε)                        over all turns of the task with the same last k states
    A_it = Σ_k w_k a_k,   w_k ∝ k^α over the k with a_k ≠ 0    k = 1 … K + 1,   K = 2,   α = 1

Differs from GiGPO: turns that begin in the same state may have come there by different ways, which a prompt with a
memory of the last K turns shows, so comparing them is not fair. Here turns are compared in nested groups: those that
agree in their state, in their last two states, and so on. Deeper groups weigh more. The advantage of the episode is not
added (`base="episode"` takes it as the widest of the groups). The objective is GiGPO's.

A group in which a turn is alone, all returns are equal, or the turn has just the mean, says nothing and has no weight;
what differs from 0 by rounding alone counts as 0. If no group says anything, A = 0. The first turns have fewer groups.
A loop in one episode is compared with itself. Without an environment all answers begin at the task: then this is GRPO
with the standard deviation over n (`ddof`). Of several agents, each is compared with itself.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.gigpo import GIGPO
from gruppo.pieces import advantage
from gruppo.stages import Context, Occupant, setting
from gruppo.stages.credit import COMPARES
from gruppo.stages.requires import RecurringStates
from gruppo.stages.turns import Normalise, anchor_K, comparison, judged_K, seat_return, turn_return

ROUNDING = 1e-5  # z-scores below it are 0 up to rounding


@dataclass(frozen=True)
class NestedAnchors(Occupant):
    """A = Σ_k w_k a_k over the k with a_k ≠ 0, a_k: the return against turns of the group with the same last k states.

    history      K: how many states before the present one are looked at
    alpha        w_k ∝ (k + depth_shift)^alpha
    base         episode: the return of the episode among all turns of the group is one more, the widest group
    normalise    a_k is (g − mean) / (std + eps), or g − mean
    """

    gamma: float = setting(0.95, low=0, high=1)
    history: int = setting(2, low=0, witness=0)
    alpha: float = setting(1.0, low=0)
    depth_shift: float = setting(0.0, low=0, witness=1.0)
    base: Literal["none", "episode"] = "none"
    normalise: Normalise = "std"
    ddof: int = setting(0, low=0, high=1)
    eps: float = setting(1e-6, low=0, witness=1.0)
    writes = ("adv_N",)
    ignores = ("scale",)
    requires = (COMPARES, RecurringStates())

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        judged, state_K, ret_K = judged_K(batch), anchor_K(batch), turn_return(batch, self.gamma)
        columns, one = [batch.group_K, batch.agent_K], torch.ones_like(ret_K)
        items = [self.item(batch, seat_return(batch), columns, judged, 1)] if self.base == "episode" else []
        for k in range(1, self.history + 2):
            columns.append(batch.lag(state_K, k - 1, "K", batch.seats))
            there = judged & (batch.lag(one, k - 1, "K", batch.seats) > 0)
            items.append(self.item(batch, ret_K, columns, there, self.ddof))
        weights = [(depth + self.depth_shift) ** self.alpha for depth in range(1, len(items) + 1)]
        up, down = torch.zeros_like(ret_K), torch.zeros_like(ret_K)
        for weight, (adv_K, says_K) in zip(weights, items, strict=True):
            up, down = up + weight * says_K * adv_K, down + weight * says_K
        return {"adv_N": batch.spread(up / torch.where(down > 0, down, one), "K", "N")}

    def item(self, batch: Batch, x_K: Tensor, columns: list[Tensor], there: Tensor, ddof: int) -> tuple[Tensor, Tensor]:
        """The advantage inside the groups that these columns make, and 1 where it says anything."""
        key = batch.key("K", *columns)
        z_K = advantage.z_score(x_K, key, where=there, eps=0.0, ddof=ddof)
        adv_K = comparison(self.normalise, self.eps, ddof)(x_K, key, there)
        return adv_K, (z_K.abs() > ROUNDING).to(adv_K.dtype)


HGPO = GIGPO.but(
    name="hgpo",
    paper="arXiv:2602.22817",
    checked=(
        "Compared with recipe/hgpo/core_hgpo.py in OliverLeeXZ/SERL, a copy of verl-agent's recipe, and with the "
        "scripts beside it: γ = 0.95, K = 2 (or 4), α = 1, no base group, β = 0.01, ε = 1e-6, standard deviations "
        "with n (ddof=1: n - 1). The paper counts groups from 0 and weighs them by (k + 1)^α, so by 1, 2, 3, as "
        "here; in the code k begins with 1, so that the weights are 2, 3, 4 (here depth_shift=1). With base_group "
        "they are 1 for the episode and 2, 3, 4 (here base=episode, whose deviation has n - 1 there, too). It adds "
        "1e-6 to the sum of the weights, which is left out here, and tests a_k ≠ 0 exactly, where here rounding "
        "does not decide. The paper itself was not read. A penalty of 0.1 on invalid actions is the task's."
    ),
    confidence="code",
    credit=NestedAnchors(gamma=0.95, history=2, alpha=1.0),
    version=2,  # 1 did not say that it may break the law `direction`; it computed the same
    breaks={
        "equal_rewards": "Of equal rewards the one that is nearer is worth more: γ prefers the shorter way.",
        "direction": (
            "Without the advantage of the episode, right episodes may meet each other alone. Then their early turns "
            "are pushed down more than the late ones up, and wrong ones are not compared at all."
        ),
    },
)
