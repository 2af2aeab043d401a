"""Mistakes of methods that look at components of the reward, or at which answers agree: one for each method."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, segment
from gruppo.methods import method
from gruppo.methods.copo import InsideAndBetween
from gruppo.methods.empo import AgreeingAnswers
from gruppo.methods.gdpo import DecoupledNormalised
from gruppo.methods.unlikeliness import Unlikeliness, likelihood
from gruppo.pieces import advantage
from gruppo.stages import Context, Method
from gruppo.stages.credit import to_tokens
from gruppo.stages.reward import codes


@dataclass(frozen=True)
class FailedInTheStep(DecoupledNormalised):
    """GDPO that whitens over all rows: failed answers are in the mean and the deviation of the step, as zeros."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        groups = batch.level("E", "G")
        sum_E = advantage.z_score(batch.return_EC, groups, where=batch.judged_E, eps=self.eps).sum(1)
        adv_E = advantage.z_score(sum_E, segment.one_part(sum_E), eps=self.eps)
        return to_tokens(batch, torch.where(batch.judged_E, adv_E, torch.zeros_like(adv_E)))


@dataclass(frozen=True)
class FailedAnswersCount(InsideAndBetween):
    """COPO whose entropy has the answers of failed episodes in it."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        same, groups = batch.key("E", batch.group_E, batch.answer_E), batch.level("E", "G")
        one_E = torch.ones_like(batch.reward_E)
        share_E = same.spread(batch.gather(one_E, "E", same)) / groups.spread(batch.gather(one_E, "E", groups))
        entropy_G = batch.gather(-torch.log(share_E), "E", groups, "mean")
        weight_G = torch.sigmoid(entropy_G - 0.5)
        return {**super().__call__(ctx, batch), "local_N": batch.spread(weight_G, "G", "N")}


@dataclass(frozen=True)
class InBlocks(AgreeingAnswers):
    """EMPO that takes every four rows for a group, as code does that knows `num_generations` and no groups."""

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        said = [e.answer for e in episodes]
        blocks = [said[i // 4 * 4 : i // 4 * 4 + 4] for i in range(len(said))]
        return {"agreement": [block.count(a) / len(block) for a, block in zip(said, blocks, strict=True)]}


@dataclass(frozen=True)
class SortedOnce(Unlikeliness):
    """argsort taken for the rank: who stands at a place, not at which place one stands."""

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        group = codes([e.group for e in episodes])
        likely = np.array([likelihood(e) if e.tokens else 0.0 for e in episodes])
        out = np.zeros(len(episodes))
        for g in np.unique(group):
            out[group == g] = np.argsort(likely[group == g]) / (group == g).sum()
        return {"unlikely": [-self.rank_coef * e.reward["task"] * r for e, r in zip(episodes, out, strict=True)]}


def spoiled(name: str, **rooms: Any) -> Method:
    return method(name).but(name="spoiled", **rooms)


SPOILED: dict[str, tuple[str, Method]] = {
    "gdpo whitens over failures": ("failures", spoiled("gdpo", credit=FailedInTheStep())),
    "copo counts answers of failures": ("failures", spoiled("copo", credit=FailedAnswersCount())),
    "empo takes blocks for groups": ("order", spoiled("empo", reward=(InBlocks(),))),
    "unlikeliness sorts once": ("order", spoiled("unlikeliness", reward=(SortedOnce(),))),
}
