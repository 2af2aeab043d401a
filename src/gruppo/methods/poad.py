"""POAD, policy optimisation with action decomposition (Wen et al. 2024, arXiv:2405.15821).

    γ_t = 1 inside an action (a turn),   γ_t = γ at its last token,   γ = 0.95
    δ_t = r_t + γ_t V_{t+1} − V_t,   Â_t = δ_t + γ_t λ Â_{t+1},   R̂_t = Â_t + V_t,   A = whiten(Â),   λ = 0.95
    J_π = mean_t min(r_t A_t, clip(r_t, 1−0.2, 1+0.2) A_t) + 0.01 H,   J_V as in PPO

Differs from PPO: time passes between actions, not between the tokens of one. Plain PPO over tokens with γ < 1 discounts
by γ^|a|, so that a way with long actions looks longer than it is (0.6 for ten tokens at 0.95). Here the backup inside
an action has no discount, V_{t+1} being the value at the next token, and that of its last token reaches to the first
token of the next turn. With correct values and λ = 1, the first token of an action has the advantage of the whole
action. At γ = 1, or in tasks of one turn, this is PPO with an entropy bonus; `gamma_inside` = γ is PPO over tokens.

Observations are not decisions and cost no time. A turn in which nothing was sampled is no step: its reward is paid at
the last token before it. An open episode bootstraps from its last value.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.ppo import PPO
from gruppo.pieces import advantage
from gruppo.stages import Context, Need, Occupant, need, setting
from gruppo.stages.credit import in_time, two_gaes, whitened_gae
from gruppo.stages.objective import ClippedSurrogate, ValueLoss
from gruppo.stages.penalties import EntropyBonus
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class ActionGae(Occupant):
    """GAE over the decisions of an episode, discounted by gamma after a turn and by gamma_inside within it; whitened.

    `ret_N` is the critic's target. Rewards of turns are at their last decision, that of the episode at its last.
    """

    gamma: float = setting(0.95, low=0, high=1, witness=0.5)
    gamma_inside: float = setting(1.0, low=0, high=1, witness=0.5)
    lam: float = setting(0.95, low=0, high=1)
    writes = ("adv_N", "ret_N")

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (need("value", "critic"),)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        mine, adv, ret, known = two_gaes(batch, self.discounts(batch), self.lam, self.lam)
        return whitened_gae(batch, mine, adv, ret, known, known)

    def discounts(self, batch: Batch) -> Tensor:
        """For each decision, the discount of what comes after it."""
        mine = in_time(batch, batch.sampled_N)
        last = advantage.ends(batch.turn_N.index_select(0, mine)) > 0
        inside_N = torch.full_like(batch.value_critic_N, self.gamma_inside)
        return inside_N.index_fill(0, mine[last], self.gamma)


POAD = PPO.but(
    name="poad",
    paper="arXiv:2405.15821",
    checked=(
        "Compared with morning9393/ADRL: batch_process_tppo in mappo/utils/language_buffer.py, "
        "mappo/trainers/llm_trainer_tppo.py and the defaults of mappo/config.py: γ = λ = 0.95, clips of 0.2 for policy "
        "and value, entropy 0.01, one epoch in 4 minibatches (the paper: γ 0.95 to 0.99, entropy 1e-4 to 1e-2, 1 to "
        "5 epochs). There advantages are whitened over those that are not 0, with n, in each minibatch; here over "
        "the tokens of the step, with n - 1. The value loss has a coefficient of 0.5 and an optimiser of its own "
        "there, too. An update is dropped there if the KL to the old policy is above 0.02, which is left out here. "
        "NTPO, its plain PPO over tokens, is gamma_inside=0.95."
    ),
    confidence="code",
    credit=ActionGae(gamma=0.95, lam=0.95),
    objective={
        "policy": ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="token"),
        "critic": ValueLoss(clip_value=0.2),
    },
    penalties=EntropyBonus(entropy_coef=0.01),
    update=Passes(epochs=1, minibatches=4),
    breaks={
        "equal_rewards": "The advantage is against the critic's guess, which may be wrong where all rewards are equal."
    },
)
