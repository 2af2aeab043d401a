"""How far a method's advantages of turns are from the exact ones, measured in a run.

    A*(h, a) = E[g | h, a] − E[g | h]      h: all states and actions before the turn, and its state; g: its return
    step_gap = 1 − corr(A, A*)             over the turns of a step; 0: equal up to shift and scale

    gruppo train method=hgpo method.update=gruppo.lab.steps:MeasuredSteps task.train_size=1 prompts=64 …

The means are over all episodes of the step, whatever their group. So they are near the exact ones if these episodes
are many and of one task (`task.train_size=1`), in a world with few histories. The method compares inside its groups.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.stages import Context, setting
from gruppo.stages.turns import judged_K, turn_return
from gruppo.stages.update import Passes


@dataclass(frozen=True)
class MeasuredSteps(Passes):
    """`Passes` that first logs `step_gap`; it learns the same. `gamma` is that of the returns."""

    gamma: float = setting(0.95, low=0, high=1)

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        adv_K, there = batch.gather(batch.adv_N, "N", "K", "mean"), judged_K(batch)
        pair = torch.stack([adv_K[there], exact_K(batch, self.gamma)[there]]).double()
        if pair.shape[1] > 1 and bool((pair.std(1) > 0).all()):
            learner.tally.add("step_gap", 1.0 - float(torch.corrcoef(pair)[0, 1]))
        super().__call__(ctx, learner, batch)


def exact_K(batch: Batch, gamma: float) -> Tensor:
    """A* of every turn, from the means over all episodes of the batch."""
    seats, there, ret_K = batch.seats, judged_K(batch), turn_return(batch, gamma)
    columns = [batch.agent_K, batch.state_K]
    for back in range(1, int(batch.turn_index_K.max()) + 1):
        columns += [batch.lag(x, back, "K", seats) for x in (batch.state_K, batch.action_key_K)]
    here, done = batch.key("K", *columns), batch.key("K", *columns, batch.action_key_K)
    value_K, q_K = (key.spread(batch.gather(ret_K, "K", key, "mean", where=there)) for key in (here, done))
    return q_K - value_K
