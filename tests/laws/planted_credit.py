"""Mistakes of credit and rollout methods, planted to see that the laws catch them: one for each method.

Several of them have been shipped by trainers; the docstring says what is wrong.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import Batch, Source, Use, centre
from gruppo.methods import method
from gruppo.methods.gpg import CentredPerUseful
from gruppo.methods.grpo_passk import BestOfK
from gruppo.methods.opo import LengthWeighted
from gruppo.methods.reinforce_pp import WhitenedReturn
from gruppo.methods.reinforce_pp_baseline import WhitenedCentred
from gruppo.methods.remax import AgainstGreedy
from gruppo.pieces import advantage
from gruppo.stages import Context, Method, Occupant, Stats, Term, Values
from gruppo.stages.credit import judged_in_time, to_tokens, whitened
from gruppo.stages.objective import ClippedSurrogate


@dataclass(frozen=True)
class FailuresWhitened(WhitenedReturn):
    """REINFORCE++ over the whole padded batch: tokens of failed answers are whitened too, as returns of 0."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        known_E = torch.where(batch.judged_E, batch.reward_E, torch.zeros_like(batch.reward_E))
        adv_N = advantage.whiten(batch.spread(known_E, "E", "N"), batch.source_N == Source.POLICY)
        return {"adv_N": torch.where(batch.policy_N, adv_N, torch.zeros_like(adv_N))}


@dataclass(frozen=True)
class ApartInTheMean(WhitenedCentred):
    """REINFORCE++-baseline whose group mean has the rewards of experts in it."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        mine, known = judged_in_time(batch), batch.judged_E | (batch.learn_E & ~torch.isnan(batch.reward_E))
        centred_E = centre(batch.reward_E, batch.level("E", "G"), where=known)
        return whitened(batch, mine, batch.spread(centred_E, "E", "N")[mine])


@dataclass(frozen=True)
class PaddedWidth(ClippedSurrogate):
    """Dr.GRPO whose constant is the longest answer that it sees, as the padded width is (pitfall 14)."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.learn_N, "episode_sum")]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        width = float(batch.gather(batch.learn_N, "N", "E", "sum").max().clamp(min=1))
        return {"policy": super().__call__(ctx, batch, stats)["policy"] / width}


@dataclass(frozen=True)
class NoGreedyIsZero(AgainstGreedy):
    """ReMax that takes a greedy answer that is missing, or could not be judged, for one of reward 0."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        base_E = batch.judged_E & (batch.use_E == Use.BASELINE)
        base_G = batch.gather(batch.reward_E, "E", "G", "mean", where=base_E)  # 0 of none
        adv_E = batch.reward_E - batch.spread(base_G, "G", "E")
        return to_tokens(batch, torch.where(batch.judged_E, adv_E, torch.zeros_like(adv_E)))


@dataclass(frozen=True)
class CountsNonZero(CentredPerUseful):
    """GPG that takes every reward but 0 for useful, as verl does: a shift of rewards changes the step."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        judged = batch.judged_E
        useful = ((batch.reward_E != 0) & judged).sum().double().clamp(min=1)
        centred_E = centre(batch.reward_E, batch.level("E", "G"), where=judged)
        return to_tokens(batch, judged.sum() / useful * centred_E)


@dataclass(frozen=True)
class FailuresWeigh(LengthWeighted):
    """OPO whose failed answers weigh with their length, at a reward of 0."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        length_E = batch.gather(batch.source_N == Source.POLICY, "N", "E", "sum").to(batch.reward_E.dtype)
        known_E = torch.where(batch.judged_E, batch.reward_E, torch.zeros_like(batch.reward_E))
        adv_E = advantage.weighted_centre(known_E, length_E, batch.level("E", "G"))
        return to_tokens(batch, torch.where(batch.judged_E, adv_E, torch.zeros_like(adv_E)))


@dataclass(frozen=True)
class AloneLeads(BestOfK):
    """Pass@k in which an answer without others leads them by its whole reward: the best of nothing is taken for 0."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        groups, judged = batch.level("E", "G"), batch.judged_E
        reward_E = torch.where(judged, batch.reward_E, torch.zeros_like(batch.reward_E))
        single_E = groups.spread(batch.gather(judged, "E", groups, "sum") == 1) & judged
        lead_E = torch.where(single_E, reward_E, advantage.lead(reward_E, groups, self.k, where=judged))
        return to_tokens(batch, lead_E)


def spoiled(name: str, **rooms: Occupant) -> Method:
    return method(name).but(name="spoiled", **rooms)


SPOILED: dict[str, tuple[str, Method]] = {
    "reinforce_pp whitens failures": ("failures", spoiled("reinforce_pp", credit=FailuresWhitened())),
    "reinforce_pp_baseline, experts in the mean": (
        "unused",
        spoiled("reinforce_pp_baseline", credit=ApartInTheMean()),
    ),
    "dr_grpo over the padded width": ("micro_batches", spoiled("dr_grpo", objective=PaddedWidth())),
    "remax, no greedy answer is 0": ("equal_rewards", spoiled("remax", credit=NoGreedyIsZero())),
    "gpg counts what is not 0": ("shift", spoiled("gpg", credit=CountsNonZero())),
    "opo weighs failures": ("failures", spoiled("opo", credit=FailuresWeigh())),
    "grpo_passk, one alone leads": ("equal_rewards", spoiled("grpo_passk", credit=AloneLeads())),
}
