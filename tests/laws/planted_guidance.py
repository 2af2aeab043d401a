"""Mistakes of the methods that weigh rewards and tokens in another way, or are led by teachers and experts: one for
each, planted to see that the laws catch them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, Source, Status, centre
from gruppo.methods import method
from gruppo.methods.adora import LongerIsRight
from gruppo.methods.bnpo import BetaNormalised
from gruppo.methods.chord import ExpertLikelihood
from gruppo.methods.d3s import DownSample
from gruppo.methods.g2rpo import RankQuantiles
from gruppo.methods.kdrl import TeacherKL
from gruppo.methods.llds import HoldLikelihood
from gruppo.methods.ngrpo import VirtualBest
from gruppo.methods.rl_plus import MixedImportance
from gruppo.stages import Context, Method, Occupant, Stats, Term, Values
from gruppo.stages.credit import COMPARES, to_tokens
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.recorded import expert_N
from gruppo.stages.select import TopEntropy


@dataclass(frozen=True)
class FailuresBelowTheBest(VirtualBest):
    """NGRPO that counts a failed answer as one of reward 0: the virtual best stands against it, too."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        known_E = torch.where(torch.isnan(batch.reward_E), torch.zeros_like(batch.reward_E), batch.reward_E)
        alive = batch.with_columns(reward_E=known_E, status_E=torch.full_like(batch.status_E, Status.OK))
        return super().__call__(ctx, alive)


@dataclass(frozen=True)
class AloneAsItIs(LongerIsRight):
    """ADORA that leaves the reward of an answer without others as it is, as its code does."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        size_G = batch.gather(batch.judged_E, "E", "G", "count", where=batch.judged_E)
        alone_E = batch.judged_E & batch.spread(size_G == 1, "G", "E")
        reward_N = batch.spread(torch.where(alone_E, batch.reward_E, torch.zeros_like(batch.reward_E)), "E", "N")
        return {"adv_N": super().__call__(ctx, batch)["adv_N"] + reward_N}


@dataclass(frozen=True)
class CappedTimesRounding(BetaNormalised):
    """BNPO that multiplies what is left of R − p, which is rounding, by a weight at its cap of a million."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rate_G = batch.gather(batch.reward_E, "E", "G", "mean", where=batch.judged_E)
        rest_E = batch.reward_E - batch.spread(rate_G, "G", "E")
        known_E = torch.where(batch.judged_E, rest_E, torch.zeros_like(rest_E))
        return to_tokens(batch, self.cap * known_E)


@dataclass(frozen=True)
class TiesByPlace(RankQuantiles):
    """G²RPO whose ties are ranked by their place in the batch: equal answers have different advantages."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        apart_E = batch.reward_E + 1e-6 * torch.arange(batch.size("E"))
        return super().__call__(ctx, batch.with_columns(reward_E=apart_E))


@dataclass(frozen=True)
class FirstOfTies(TopEntropy):
    """Forking tokens by topk alone: of equal entropies those that come first, whatever the order means."""

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        flat_N = torch.where(batch.policy_N, torch.round(batch.entropy_old_N), -1.0)
        count = max(int(batch.policy_N.sum()) // 2, 1)
        keep_N = torch.zeros_like(batch.keep_N).index_fill(0, torch.topk(flat_N, count).indices, True)
        return keep_N, torch.ones_like(batch.weight_N)


@dataclass(frozen=True)
class ChoosesByRow(DownSample):
    """D³S that breaks ties by row: the first half of the batch is luckier."""

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        first_E = torch.arange(batch.size("E")) < batch.size("E") // 2
        return batch.spread(first_E, "E", "N"), torch.ones_like(batch.weight_N)


@dataclass(frozen=True)
class GateOfItsMicroBatch(HoldLikelihood):
    """LLDS with the gate of whole answers, declared additive: a cut may part an answer's sequences."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [replace(term, additive=True) for term in super().terms(ctx, batch)]


@dataclass(frozen=True)
class MaskLeavesTheCount(TeacherKL):
    """KDRL that counts by the statistics which tokens at hand are taught, and says that it is additive."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        taught_N = batch.policy_N & (stats.logp_N.detach() < batch.logp_teacher_N)
        share = taught_N.sum().clamp(min=1) / batch.policy_N.sum().clamp(min=1)
        value_N = super().__call__(ctx, batch, stats)["kl_teacher"] / share
        return {"kl_teacher": torch.where(taught_N, value_N, torch.zeros_like(value_N))}


@dataclass(frozen=True)
class OneCount(ExpertLikelihood):
    """CHORD that divides experts by the tokens at hand, as a micro-batch without an expert does."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [replace(term, mean=1.0) for term in super().terms(ctx, batch)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {"expert": super().__call__(ctx, batch, stats)["expert"] / expert_N(batch).sum().clamp(min=1)}


@dataclass(frozen=True)
class OneCountForBoth(ExpertLikelihood):
    """CHORD whose experts are averaged over all tokens learned, as one objective over one mask would have it: what
    selection dropped of the policy's tokens makes the experts count for more."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [replace(term, over=term.over | batch.policy_N) for term in super().terms(ctx, batch)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        value_N = super().__call__(ctx, batch, stats)["expert"]
        return {"expert": torch.where(expert_N(batch), value_N, torch.zeros_like(value_N))}


@dataclass(frozen=True)
class ExpertsNotCounted(MixedImportance):
    """RL-PLUS whose term is over the policy's tokens alone: the experts' values are there, and never added."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [replace(term, over=batch.learn_N) for term in super().terms(ctx, batch)]


@dataclass(frozen=True)
class ExpertsWithoutWeight(MixedImportance):
    """RL-PLUS that forgets the weights of selection on the experts' tokens."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        theirs_N = batch.source_N == Source.EXPERT
        ones_N = torch.where(theirs_N, torch.ones_like(batch.weight_N), batch.weight_N)
        return super().__call__(ctx, batch.with_columns(weight_N=ones_N), stats)


@dataclass(frozen=True)
class ExpertsApartInTheMean(Occupant):
    """A credit for experts that counts those apart, too."""

    writes = ("adv_N",)
    requires = (COMPARES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        known = batch.learn_E & ~torch.isnan(batch.reward_E)
        return to_tokens(batch, centre(batch.reward_E, batch.level("E", "G"), where=known))


def spoiled(name: str, penalties: Sequence[Occupant] | None = None, **rooms: Any) -> Method:
    more = {} if penalties is None else {"penalties": tuple(penalties)}
    return method(name).but(name="spoiled", **more, **rooms)


BY_TOKENS = ClippedSurrogate(mean="token", coef=0.5)
SPOILED: dict[str, tuple[str, Method]] = {
    "ngrpo counts failures as wrong": ("failures", spoiled("ngrpo", credit=FailuresBelowTheBest())),
    "adora, one alone as it is": ("equal_rewards", spoiled("adora", credit=AloneAsItIs())),
    "bnpo, a million times what was rounded": ("equal_rewards", spoiled("bnpo", credit=CappedTimesRounding())),
    "g2rpo, ties by their place": ("equal_rewards", spoiled("g2rpo", credit=TiesByPlace())),
    "forking_tokens, the first of ties": ("order", spoiled("forking_tokens", select=(FirstOfTies(),))),
    "d3s, luck by row": ("order", spoiled("d3s", select=(ChoosesByRow(),))),
    "llds, a gate of its micro-batch": (
        "shared_prefixes",  # its cuts part the answers for which it matters, at every seed
        spoiled("llds", [GateOfItsMicroBatch(hold_coef=5.0, gate="answer")]),
    ),
    "kdrl counts what is taught": ("fused_is_two_pass", spoiled("kdrl", [MaskLeavesTheCount(teacher_coef=0.5)])),
    "chord, a count of its micro-batch": (
        "micro_batches",
        spoiled("chord", objective=(BY_TOKENS, OneCount(expert_coef=0.5)), select=()),
    ),
    "chord, one count for both": (
        "keep_and_weight",
        spoiled("chord", objective=(BY_TOKENS, OneCountForBoth(expert_coef=0.5)), select=()),
    ),
    "rl_plus, experts not counted": ("fields_matter", spoiled("rl_plus", objective=ExpertsNotCounted(), select=())),
    "chord, experts apart in the mean": ("unused", spoiled("chord", credit=ExpertsApartInTheMean(), select=())),
    "rl_plus, experts without weight": (
        "keep_and_weight",
        spoiled("rl_plus", objective=ExpertsWithoutWeight(), select=()),
    ),
}
