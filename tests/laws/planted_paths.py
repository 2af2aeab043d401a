"""Mistakes in the methods whose answers have pieces; see `planted.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from planted_objective import spoiled
from torch import Tensor

from gruppo.data import Batch, Episode, Status
from gruppo.methods import method
from gruppo.methods.oprl import EpisodeAndSteps, PairLikelihood
from gruppo.methods.s_grpo import FirstRight
from gruppo.methods.spo_segment import SegmentGain
from gruppo.methods.t_ppo import WindowGae
from gruppo.pieces import advantage
from gruppo.stages import Context, Method, Stats, Values


@dataclass(frozen=True)
class StepsOfAll(EpisodeAndSteps):
    """The baseline of a step is all steps of the group, those of failed answers too."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        paid_K = self.beta * batch.gather(batch.logp_prm_N - batch.logp_old_N, "N", "K", "sum")
        step_K = advantage.leave_one_out(paid_K, batch.level("K", "G"))
        whole_E = advantage.leave_one_out(batch.reward_E, batch.level("E", "G"), where=batch.judged_E)
        adv_N = batch.spread(whole_E, "E", "N") + self.step_coef * batch.spread(step_K, "K", "N")
        return {**super().__call__(ctx, batch), "adv_N": adv_N}


@dataclass(frozen=True)
class DetachedPairs(PairLikelihood):
    """The second model's log-ratios are detached before the loss: it never learns."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return super().__call__(ctx, batch, Stats({k: v.detach() for k, v in stats.items()}))


@dataclass(frozen=True)
class FirstInTheBatch(FirstRight):
    """The first right answer by its row, not by its exit."""

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> dict[str, list[float]]:
        seen, worth = dict.fromkeys((e.group for e in episodes), 0), list[float]()
        for e in episodes:
            right = e.reward["task"] > 0
            worth.append(0.5 ** seen[e.group] if right else 0.0)
            seen[e.group] += right
        return {"serial": worth}


@dataclass(frozen=True)
class PaysTheOpen(WindowGae):
    """An open answer is taken for a finished one, with the reward that it has not been given yet."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        given_E = torch.nan_to_num(batch.reward_EC).sum(-1)
        reward_E = torch.where(batch.open_E, given_E, batch.reward_E)
        ended_E = torch.where(batch.open_E, int(Status.OK), batch.status_E)
        return super().__call__(ctx, batch.with_columns(status_E=ended_E, reward_E=reward_E))


@dataclass(frozen=True)
class WhitensAll(SegmentGain):
    """Gains whitened over every row, those of failed answers as 0."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        gain_N = torch.nan_to_num(batch.note_gain_N)
        return {"adv_N": advantage.whiten(gain_N, torch.ones_like(batch.keep_N))}


OPRL = method("oprl")
SPOILED: dict[str, tuple[str, Method]] = {
    "t_ppo pays the open": ("failures", spoiled("t_ppo", credit=PaysTheOpen())),
    "spo_segment whitens failures": ("failures", spoiled("spo_segment", credit=WhitensAll())),
    "s_grpo, first by its row": ("order", spoiled("s_grpo", reward=FirstInTheBatch())),
    "oprl, steps of failures": ("failures", spoiled("oprl", credit=StepsOfAll())),
    "oprl, detached pairs": (
        "finite_differences",
        spoiled("oprl", objective={**OPRL.objectives, "prm": (DetachedPairs(),)}),
    ),
}
