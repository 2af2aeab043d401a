"""Mistakes in learning from pairs and from given answers, planted to see that the laws catch them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import Batch, Source
from gruppo.data.pairs import inside, widest
from gruppo.methods import method
from gruppo.methods.dpo import DirectPreference
from gruppo.methods.kto import ProspectUtility
from gruppo.stages import Context, Method, Stats, Term, Values
from gruppo.stages.recorded import Likelihood, answer_N
from gruppo.stages.relations import PairUp, summed

DPO, KTO, SFT = (method(n) for n in ("dpo", "kto", "sft"))


@dataclass(frozen=True)
class PairsAdditive(DirectPreference):
    """The push of a pair, as weights of its tokens, made of the rows at hand: a cut pair is half a pair."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("preference", answer_N(batch), 1.0)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        gap_P = batch.pairs.gap(self.implicit_E(batch, stats)).detach()
        push_P = self.beta * torch.sigmoid(-gap_P) / max(len(gap_P), 1)
        push_E = torch.zeros(batch.size("E"), dtype=push_P.dtype)
        push_E = push_E.index_add(0, batch.pairs.win_P, push_P).index_add(0, batch.pairs.lose_P, -push_P)
        return {"preference": batch.weight_N * batch.spread(push_E, "E", "N") * stats.logp_N}


@dataclass(frozen=True)
class FirstAgainstLast(PairUp):
    """The first row of a group beats its last one: the order of the batch decides."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        rows = torch.nonzero(batch.judged_E & batch.learn_E)[:, 0]
        by_place = torch.full((batch.size("E"),), 0.0, dtype=torch.float64)
        by_place[rows] = -rows.double()
        pairs = inside(batch.level("E", "G"), by_place, batch.judged_E & batch.learn_E)
        return widest(pairs, batch.group_E[pairs.win_P], 1, torch.zeros(len(pairs))).columns()


@dataclass(frozen=True)
class EveryTokenOfThePair(DirectPreference):
    """The sum of all tokens of the policy, whatever selection said of them."""

    def implicit_E(self, batch: Batch, stats: Stats) -> Tensor:
        gap_N = torch.where(batch.source_N == Source.POLICY, stats.logp_N - batch.logp_ref_N, 0.0)
        return self.beta * batch.gather(gap_N, "N", "E", "sum")


@dataclass(frozen=True)
class OwnReferencePoint(ProspectUtility):
    """KTO's z from the rows at hand, per sequence, and declared additive."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("utility", answer_N(batch))]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        z = self.reference_point(batch, stats)
        rho_E = summed(batch, stats.logp_N - batch.logp_ref_N)
        slope_E = torch.sigmoid(self.beta * (rho_E - z)).detach() * batch.label_E
        return {"utility": batch.weight_N * batch.spread(slope_E, "E", "N") * stats.logp_N}


@dataclass(frozen=True)
class EverybodysLikelihood(Likelihood):
    """Learns whatever stands in the sequences, also what a hint or an opponent wrote."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        given_N = batch.spread(batch.learn_E, "E", "N") & batch.keep_N
        # Rows without a rule read as 0: here they count.
        return [Term("likelihood", given_N, "token", additive=False)]


SPOILED: dict[str, tuple[str, Method]] = {
    "pairs declared additive": ("micro_batches", DPO.but(objective=PairsAdditive())),
    "reference point of the micro-batch": ("micro_batches", KTO.but(objective=OwnReferencePoint())),
    "pairs by place": ("order", DPO.but(credit=FirstAgainstLast())),
    "dropped tokens in the pair": ("keep_and_weight", DPO.but(objective=EveryTokenOfThePair())),
    "likelihood of everybody": ("keep_and_weight", SFT.but(objective=EverybodysLikelihood())),
}
