"""How unequal the gradients of several agents are, measured in a run; and what makes them so.

    |g_a|,   Σ_a g_a = g,    g_a the part of the policy's gradient that comes from the tokens of agent a

    gruppo train task=kuhn method=drmas method.update=gruppo.lab.agents:AgentPasses
    gruppo train … method.reward=gruppo.lab.agents:SeatScale method.reward.agent=second method.reward.factor=10

All agents speak through one policy, so whoever has the larger gradient decides where it goes. `SeatScale` pays one of
them in another currency. `CommonNormalised` is the credit of GRPO where every agent has a return of its own: one mean
and one deviation for all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Key
from gruppo.lab.variance import MeasuredPasses
from gruppo.methods.mars import PlayerCentred
from gruppo.stages import Context, Occupant, setting
from gruppo.stages.credit import COMPARES
from gruppo.stages.turns import comparison, judged_K, seat_return
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class AgentPasses(Passes):
    """`Passes` that first logs, of every agent, `grad_norm_AGENT`, without penalties, and over its learned tokens the
    means of |A| and of A, `adv_size_AGENT` and `adv_mean_AGENT`; it learns the same.
    """

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        agent_N = batch.spread(batch.agent_K, "K", "N")
        for number, name in enumerate(batch.agents):
            mine_N = batch.adv_N[(agent_N == number) & batch.learn_N]
            learner.tally.add(f"adv_size_{name}", float(mine_N.abs().mean()) if len(mine_N) else 0.0)
            learner.tally.add(f"adv_mean_{name}", float(mine_N.mean()) if len(mine_N) else 0.0)
            adv_N = torch.where(agent_N == number, batch.adv_N, 0.0)
            grad = learner.gradient("policy", batch.with_columns(adv_N=adv_N), penalties=False)
            learner.tally.add(f"grad_norm_{name}", float(grad.norm()))
        super().__call__(ctx, learner, batch)


@dataclass(frozen=True)
class NoisePasses(MeasuredPasses, AgentPasses):
    """`AgentPasses` that also logs `grad_variance` and `grad_noise`, as `gruppo.lab.variance` does."""


@dataclass(frozen=True)
class SeatScale(Occupant):
    """Component `scale` of turns: one agent is paid `factor` times what the world pays it, and `shift` more."""

    agent: str = ""
    factor: float = setting(1.0, low=0)
    shift: float = 0.0

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        return {"scale": [self.paid(e) for e in episodes]}

    def paid(self, e: Episode) -> list[float]:
        mine = [i for i, t in enumerate(e.turns) if t.agent == self.agent]
        more = [(self.factor - 1) * t.reward.get("task", 0.0) * (i in mine) for i, t in enumerate(e.turns)]
        if mine:
            more[mine[-1]] += self.shift
        return more


@dataclass(frozen=True)
class CommonNormalised(Occupant):
    """A = (R − mean) / (std + eps) over all turns of the group, R the return of the turn's agent."""

    eps: float = setting(1e-6, low=0, witness=1.0)
    writes = ("adv_N",)
    ignores = ("shift", "scale")
    requires = (COMPARES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        every = batch.key("K", batch.group_K)
        adv_K = comparison("std", self.eps)(seat_return(batch), every, judged_K(batch))
        return {"adv_N": batch.spread(adv_K, "K", "N")}


@dataclass(frozen=True)
class CommonCentred(PlayerCentred):
    """`PlayerCentred` with one mean for all players."""

    def players(self, batch: Batch) -> Key:
        pools = {"step": torch.zeros_like(batch.agent_K), "domain": batch.spread(batch.domain_E, "E", "K")}
        return batch.key("K", pools.get(self.pool, batch.group_K))
