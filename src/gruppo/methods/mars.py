"""MARS, multi-agent reasoning through self-play in games (Yuan et al. 2025, arXiv:2510.15414; later MARSHAL).

    G_t = Σ_{u ≥ t} γ^{u−t} r_u,   γ = 1        over the turns of one player in one game: its own rewards alone
    A_t = G_t − mean of G over all turns of the same player in the step        for every token of turn t
    J = 1/N Σ 1/|o| Σ_t [ min(r_t A, clip(r_t, 1 ± 0.2) A), not below 1.4 A where A < 0 ] − β k3,   β = 0.2

Differs from GRPO: one policy plays all seats of a game, rewards are summed from each turn on before anything is
normalised ("sum, then normalise"), and every player has a mean of its own. Who moves first has an advantage, so that a
common mean would praise the moves of one seat and blame those of the other, whatever they were. There is no standard
deviation, and there are no groups: the mean is that of the step, so `samples=1` will do.

The authors' code does more, each a setting here: `rewards="centred"` takes the player's mean off the reward of every
turn before the sum, which favours or punishes long games; `values="distinct"` takes the mean over the distinct returns
of a player, so that rare ones weigh as much as frequent ones; `pool="domain"` compares inside one kind of game;
`whiten="tokens"` whitens over the tokens of the step at the end. A player without turns has nothing to learn. With one
player it is REINFORCE with the mean of the step as its baseline, also for tasks of one turn.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gruppo.data import Batch, Key, centre
from gruppo.methods.grpo import GRPO
from gruppo.pieces import advantage
from gruppo.stages import Context, Occupant, setting
from gruppo.stages.credit import judged_in_time, turn_reward, whitened
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.penalties import ReferenceKL
from gruppo.stages.requires import SeveralSeats
from gruppo.stages.turns import judged_K


@dataclass(frozen=True)
class PlayerCentred(Occupant):
    """A = G − mean of G over the turns of the same player, G the rewards of this player from the turn on.

    pool     the turns that a player is compared with: of the whole step, of its domain (game), or of its group (task)
    rewards  centred: the mean reward of the player's turns is taken off each of them before the sum
    values   the mean is over all turns, or over the distinct returns
    whiten   tokens: at the end A is whitened over the tokens of the step
    """

    gamma: float = setting(1.0, low=0, high=1)
    pool: Literal["step", "domain", "group"] = "step"
    rewards: Literal["as_paid", "centred"] = "as_paid"
    values: Literal["all", "distinct"] = "all"
    whiten: Literal["no", "tokens"] = "no"
    writes = ("adv_N",)
    ignores = ("shift",)  # at gamma = 1; a discount shrinks a shift for early turns
    requires = (SeveralSeats(),)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        judged, players = judged_K(batch), self.players(batch)
        reward_K = turn_reward(batch, batch.seats)
        if self.rewards == "centred":
            reward_K = centre(reward_K, players, where=judged)
        return_K = batch.scan(reward_K, self.gamma, "K", batch.seats)
        weight_K = self.weights(batch, return_K, players, judged)
        adv_K = advantage.weighted_centre(return_K, weight_K, players, where=judged)
        adv_N, mine = batch.spread(adv_K, "K", "N"), judged_in_time(batch)
        return whitened(batch, mine, adv_N[mine]) if self.whiten == "tokens" else {"adv_N": adv_N}

    def players(self, batch: Batch) -> Key:
        pools = {"domain": batch.spread(batch.domain_E, "E", "K"), "group": batch.group_K}
        return batch.key("K", *([] if self.pool == "step" else [pools[self.pool]]), batch.agent_K)

    def weights(self, batch: Batch, return_K: Tensor, players: Key, judged: Tensor) -> Tensor:
        """1 for every turn; of turns with the same return, together 1, if the distinct ones count."""
        if self.values == "all":
            return torch.ones_like(return_K)
        rounded = torch.round(torch.nan_to_num(return_K) * 1e6).to(torch.int64)
        same = batch.key("K", players.index, rounded)
        count = batch.gather(judged, "K", same, "count", where=judged).to(return_K.dtype)
        return 1.0 / same.spread(count.clamp(min=1))


MARS = GRPO.but(
    name="mars",
    paper="arXiv:2510.15414",
    checked=(
        "Compared with thu-nics/MARS, roll/utils/functionals.py (reward_normalize_by_player, "
        "compute_reinforce_return, compute_advantage, at commit 7714e9e) and its script for several games; "
        "normalize_unique_values_by_player was read in a copy. γ = 1, β = 0.2 with k3, clips of 0.2, ROLL's dual clip "
        "at 1 + 2 · 0.2, games played once. What the code does beyond the paper is four settings: rewards=centred, "
        "values=distinct, pool=domain (grouping by tags) and whiten=tokens. There returns are discounted token by "
        "token, which at γ = 1 is the same; here turn by turn. The paper's text was read in notes alone. ROLL's "
        "default mean is over sequences of sums over tokens (mean=sequence_sum), here GRPO's. Losing by a format "
        "error (-1, the opponent +1) and a penalty of 0.05 on bad turns are the environment's."
    ),
    confidence="code",
    credit=PlayerCentred(gamma=1.0),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, clip_dual=1.4, mean="sequence"),
    penalties=ReferenceKL(kl_coef=0.2, mean="sequence"),
)
