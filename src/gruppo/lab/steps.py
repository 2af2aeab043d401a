"""Turns, measured in a run: how far a method's advantages are from the exact ones, and which steps are shared.

    A*(h, a) = E[g | h, a] − E[g | h]      h: all states and actions before the turn, and its state; g: its return
    step_gap = 1 − corr(A, A*)             over the turns of a step; 0: equal up to shift and scale
    told_apart = Var(A | group, state, g) / Var(A)      what a method sees in a turn beyond its state and its return

    gruppo train method=hgpo method.update=gruppo.lab.steps:MeasuredSteps task.train_size=1 prompts=64 …

The means are over all episodes of the step, whatever their group. So they are near the exact ones if these episodes
are many and of one task (`task.train_size=1`), in a world with few histories. The method compares inside its groups: of
one task all answers of a step are one, so that a world whose tasks have the same states is better (`crossings`).
If it compares turns that begin in the same state, whatever came before, `told_apart` is 0.

`update=gruppo.lab.steps:SharedSteps` is `MeasuredPasses` that logs `shared_steps`, too: the share of turns that another
episode of the group, which was paid differently, has as well (the same state, action and next state: an edge of SALT).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.lab.variance import MeasuredPasses
from gruppo.methods.salt import MergedSteps
from gruppo.stages import Context, setting
from gruppo.stages.turns import judged_K, turn_return
from gruppo.stages.update import Passes

ROUNDING = 1e-4  # returns that differ by less are the same


@dataclass(frozen=True)
class MeasuredSteps(Passes):
    """`Passes` that first logs `step_gap` and `told_apart`; it learns the same. `gamma` is that of the returns."""

    gamma: float = setting(0.95, low=0, high=1)

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        adv_K, there = batch.gather(batch.adv_N, "N", "K", "mean"), judged_K(batch)
        pair = torch.stack([adv_K[there], exact_K(batch, self.gamma)[there]]).double()
        if pair.shape[1] > 1 and bool((pair.std(1) > 0).all()):
            learner.tally.add("step_gap", 1.0 - float(torch.corrcoef(pair)[0, 1]))
            learner.tally.add("told_apart", told_apart(batch, adv_K, self.gamma))
        super().__call__(ctx, learner, batch)


@dataclass(frozen=True)
class SharedSteps(MeasuredPasses):
    """`MeasuredPasses` that first logs `shared_steps`; it learns the same."""

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        learner.tally.add("shared_steps", shared_steps(batch))
        super().__call__(ctx, learner, batch)


def shared_steps(batch: Batch) -> float:
    """The share of the turns of judged episodes that an episode of the group with another reward has, too."""
    there, reward_K = judged_K(batch), batch.spread(batch.reward_E, "E", "K")
    edges = MergedSteps().edges(batch)
    least, most = (edges.spread(batch.gather(reward_K, "K", edges, how, where=there)) for how in ("min", "max"))
    return float((most > least)[there].double().mean())


def exact_K(batch: Batch, gamma: float) -> Tensor:
    """A* of every turn, from the means over all episodes of the batch."""
    seats, there, ret_K = batch.seats, judged_K(batch), turn_return(batch, gamma)
    columns = [batch.agent_K, batch.state_K]
    for back in range(1, int(batch.turn_index_K.max()) + 1):
        columns += [batch.lag(x, back, "K", seats) for x in (batch.state_K, batch.action_key_K)]
    here, done = batch.key("K", *columns), batch.key("K", *columns, batch.action_key_K)
    value_K, q_K = (key.spread(batch.gather(ret_K, "K", key, "mean", where=there)) for key in (here, done))
    return q_K - value_K


def told_apart(batch: Batch, adv_K: Tensor, gamma: float) -> float:
    """The share of the variance of advantages inside parts of turns with the same group, agent, state and return."""
    there, same_return = judged_K(batch), (turn_return(batch, gamma) / ROUNDING).round().long()
    alike = batch.key("K", batch.group_K, batch.agent_K, batch.state_K, same_return)
    within = adv_K - alike.spread(batch.gather(adv_K, "K", alike, "mean", where=there))
    return float(within[there].double().square().mean() / adv_K[there].double().var(correction=0))
