"""GRPO with the group's median as the baseline: one lucky answer does not move the bar for the others.

    A_i = (R_i − median R) / (std R + ε)

gruppo methods check ./examples/median_baseline.py:MEDIAN_BASELINE
gruppo train method=./examples/median_baseline.py:MEDIAN_BASELINE method.credit.eps=1e-4
"""

from dataclasses import dataclass

import torch

from gruppo.data import Batch
from gruppo.methods.grpo import GRPO
from gruppo.stages import Context, Occupant, setting
from gruppo.stages.requires import Samples


@dataclass(frozen=True)
class MedianBaseline(Occupant):
    eps: float = setting(1e-6, low=0, witness=1.0)
    writes = ("adv_N",)
    ignores = ("shift", "scale")
    requires = (Samples(2, "The median of a single answer is the answer itself, so it has no advantage."),)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, torch.Tensor]:
        groups, judged_E = batch.level("E", "G"), batch.judged_E
        reward_E = torch.where(judged_E, batch.reward_E, torch.inf)  # not judged: last in its group
        by_reward = reward_E.argsort()
        rows = by_reward[groups.index[by_reward].argsort(stable=True)]  # group after group, each from low to high
        size_G, n_G = (batch.gather(reward_E, "E", groups, "count", where=w) for w in (None, judged_E))
        first_G = size_G.cumsum(0) - size_G
        median_G = (reward_E[rows[first_G + (n_G - 1) // 2]] + reward_E[rows[first_G + n_G // 2]]) / 2
        std_G = batch.gather(batch.reward_E, "E", groups, "std", where=judged_E, ddof=1)
        adv_E = (reward_E - groups.spread(median_G)) / (groups.spread(std_G) + self.eps)
        return {"adv_N": batch.spread(torch.where(judged_E, adv_E, 0.0), "E", "N")}


MEDIAN_BASELINE = GRPO.but(name="median_baseline", credit=MedianBaseline())
