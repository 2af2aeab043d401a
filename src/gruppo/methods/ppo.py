"""PPO (Schulman et al. 2017, arXiv:1707.06347).

    δ_t = r_t + γ V_{t+1} − V_t,   Â_t = δ_t + γλ Â_{t+1},   R̂_t = Â_t + V_t,   A = whiten(Â)
    J_π = mean_t min(r_t A_t, clip(r_t, 1−0.2, 1+0.2) A_t),   J_V = −½ mean_t max((V−R̂)², (clip(V, V_old±0.5)−R̂)²)

Differs from GRPO: the baseline is a trained critic, a role with its own optimiser, and the advantage is per token; no
groups are needed. `kl_coef` puts a KL to the reference into the token rewards; 0, the default, turns it off.
"""

from gruppo.methods.reinforce import REINFORCE
from gruppo.stages import Role
from gruppo.stages.credit import Gae
from gruppo.stages.objective import ClippedSurrogate, ValueLoss
from gruppo.stages.update import Passes

PPO = REINFORCE.but(
    name="ppo",
    paper="arXiv:1707.06347",
    checked=(
        "Compared with verl core_algos.py, compute_gae_advantage_return and compute_value_loss. clip_value = 0.5 "
        "is verl's default (0.2 is the classic value); λ = 0.95 is the classic value (verl's configuration has "
        "1.0). verl's KL in the token reward is the field kl_coef. Two minibatches are ours."
    ),
    confidence="code",
    credit=Gae(gamma=1.0, lam=0.95),
    objective={
        "policy": ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="token"),
        "critic": ValueLoss(clip_value=0.5),
    },
    update=Passes(epochs=1, minibatches=2),
    cast={"critic": Role(as_="head", train=True)},
    breaks={
        "equal_rewards": "The advantage is against the critic's guess, which may be wrong where all rewards are equal."
    },
)
