"""Dr. MAS, agent-wise normalisation for systems of several agents (Feng et al. 2026, arXiv:2602.08847).

    R_ikn: the return of agent k in episode i, with the penalties of its n-th turn          for every turn of agent k
    A_ikn = (R_ikn − μ_k) / (σ_k + ε),   μ_k, σ_k over all turns of agent k in the episodes of the task
    J = mean over turns of mean_t min(r_t A, clip(r_t, 1−0.2, 1+0.2) A)

Differs from GRPO: the group is the task and the agent. GRPO takes one mean and one deviation for all; an agent that is
only asked in hard cases, say a verifier, then has a negative advantage on average, and one whose rewards have another
scale a gradient of another size. Here every agent has mean 0 and deviation 1. There is no KL.

An agent that acts twice in an episode is in its statistics twice. One that acts once has A = 0; with `alone="raw"`, an
agent that acts in a single episode of the group has its return. `normalise="mean"` does not divide. Rewards of a turn
that are not the task's, such as a penalty on an invalid action, belong to that turn; with `extras="agent"` to all turns
of the agent in the episode. With one agent and one turn an episode this is GRPO. All agents speak through the policy,
unless `method.writers.AGENT=ROLE` gives one a model of its own. A group of one is refused.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods.grpo import GRPO
from gruppo.pieces import advantage
from gruppo.stages import Context, Occupant, setting
from gruppo.stages.credit import COMPARES
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.requires import SeveralSeats
from gruppo.stages.turns import Alone, Normalise, comparison, judged_K, seat_advantage, seat_return


@dataclass(frozen=True)
class AgentNormalised(Occupant):
    """A = (R − mean) / (std + eps) over the turns of one agent in the episodes of the group, R its return.

    extras     rewards of turns that are not the task's count for their own turn, or for all turns of the agent
    normalise  A is (R − mean) / (std + eps), or R − mean
    alone      raw: an agent that acts in one episode of the group alone has A = R
    """

    extras: Literal["turn", "agent"] = "turn"
    normalise: Normalise = "std"
    alone: Alone = "zero"
    eps: float = setting(1e-6, low=0, witness=1.0)
    writes = ("adv_N",)
    ignores = ("shift", "scale")
    requires = (COMPARES, SeveralSeats())

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return_K = seat_return(batch)
        if self.extras == "turn":
            extra_K = extras(batch)
            return_K = return_K - (batch.seats.spread(batch.gather(extra_K, "K", batch.seats)) - extra_K)
        agents = batch.key("K", batch.group_K, batch.agent_K)
        adv_K = comparison(self.normalise, self.eps)(return_K, agents, judged_K(batch))
        if self.alone == "raw":
            adv_K = torch.where(
                seat_advantage(batch, lambda _, key, where: advantage.alone(key, where)), return_K, adv_K
            )
        return {"adv_N": batch.spread(adv_K, "K", "N")}


def extras(batch: Batch) -> Tensor:
    """What each turn was paid beside the task's own reward."""
    if "task" not in batch.components:
        return batch.reward_K
    task = batch.components.index("task")
    paid_K = batch.spread(batch.paid_EC[:, task], "E", "K")
    return batch.reward_K - torch.where(paid_K, torch.nan_to_num(batch.reward_KC[:, task]), 0.0)


DRMAS = GRPO.but(
    name="drmas",
    paper="arXiv:2602.08847",
    checked=(
        "Compared with langfengQ/DrMAS, verl/trainer/ppo/core_algos.py, compute_grpo_outcome_advantage with "
        "group_by_agent_id at commit 3b556f2, and with its script for mathematics: standard deviation with n - 1, "
        "ε = 1e-6, one update a batch, no KL, no entropy, groups of 8, a penalty of 0.1 on invalid actions, which is "
        "the task's here. There an agent with a single turn keeps its raw reward (here alone=raw, of a single "
        "episode). The reward of an episode is one for all agents there; here it is the return of the agent, so that "
        "games are covered. One model for all agents is the default here; with several (method.writers) every "
        "model takes the mean over its own turns. Every turn is a sample of its own there, and so it is in the mean "
        "here; verl's default is the mean over tokens."
    ),
    confidence="code",
    credit=AgentNormalised(),
    objective=ClippedSurrogate(clip_low=0.2, clip_high=0.2, mean="turn"),
    penalties=(),
)
