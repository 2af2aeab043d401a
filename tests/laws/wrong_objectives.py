"""Objectives with a mistake each; planted.py says which law catches it."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from sound import NOW, OLD, Objective
from torch import Tensor

from gruppo.data import Batch, Source, Use
from gruppo.methods.disco import Discriminate
from gruppo.pieces import surrogate
from gruppo.pieces.ratio import ratio
from gruppo.stages import Context, Need, Occupant, Stats, Term, Values


@dataclass(frozen=True)
class DividesByItsMicroBatch(Objective):
    """The mean over the tokens at hand, not over those of the optimiser step (pitfall 12)."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.learn_N, 1.0)]

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        return super().per_token(batch, stats) / batch.learn_N.sum().clamp(min=1)


@dataclass(frozen=True)
class CountsByStatistic(Objective):
    """The mean over the tokens with a ratio above 1, made of the rows at hand, and still declared additive."""

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        some_N = batch.learn_N & (stats.logp_N.detach() > batch.logp_old_N)
        share = some_N.sum().clamp(min=1) / batch.learn_N.sum().clamp(min=1)
        return torch.where(some_N, super().per_token(batch, stats) / share, torch.zeros_like(stats.logp_N))


@dataclass(frozen=True)
class HingeAdditive(Discriminate):
    """DisCO's hinge over the whole step, declared additive; the separation is left out."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [replace(super().terms(ctx, batch)[1], additive=True)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {"trust": super().__call__(ctx, batch, stats)["trust"]}


@dataclass(frozen=True)
class EpisodeAdditive(Objective):
    """One ratio an episode, although a cut may part its sequences; declared additive."""

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        gap_N = (stats.logp_N - batch.logp_old_N).clamp(-20, 20)
        gap_E = batch.gather(gap_N, "N", "E", "mean", where=batch.learn_N)
        return batch.spread(torch.exp(gap_E), "E", "N") * batch.adv_N


@dataclass(frozen=True)
class CalmOfTheStep(Occupant):
    """Stands behind a sound objective of a chain: less push, the further the rows at hand have drifted; declared
    additive."""

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("calm", batch.learn_N)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        gap_N = torch.where(batch.learn_N, stats.logp_N - batch.logp_old_N, torch.zeros_like(stats.logp_N))
        drift = gap_N.detach().abs().sum() / batch.learn_N.sum().clamp(min=1)
        return {"calm": -drift * batch.weight_N * gap_N.clamp(-20, 20)}


@dataclass(frozen=True)
class CountsByOld(Objective):
    """Counts the tokens that were likely: what is counted is said before a lazy log π_old is known."""

    def over(self, batch: Batch) -> Tensor:
        return batch.learn_N & (batch.logp_old_N > -2.0)


@dataclass(frozen=True)
class CountsByRow(Objective):
    """Counts every second row as it stands in the batch."""

    def over(self, batch: Batch) -> Tensor:
        return batch.learn_N & (torch.arange(batch.size("N")) % 2 == 0)


@dataclass(frozen=True)
class CountsFailures(Objective):
    """Tokens of failed episodes are in the denominator (pitfall 21)."""

    def over(self, batch: Batch) -> Tensor:
        return (batch.source_N == Source.POLICY) & batch.keep_N

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        return torch.where(batch.learn_N, super().per_token(batch, stats), torch.zeros_like(stats.logp_N))


@dataclass(frozen=True)
class CountsBaselines(Objective):
    """Tokens of baseline episodes cannot be learned (they read as 0), but they can be counted."""

    def over(self, batch: Batch) -> Tensor:
        mine = (batch.source_N == Source.POLICY) & batch.spread(batch.use_E <= Use.BASELINE, "E", "N")
        return mine & batch.keep_N

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        return (batch.spread(torch.nan_to_num(batch.reward_E), "E", "N") - 0.5) * stats.logp_N


@dataclass(frozen=True)
class NoBound(Objective):
    """exp(log π − log π_old) as it comes."""

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        r_N = torch.exp(stats.logp_N - batch.logp_old_N)
        return surrogate.clipped(r_N, batch.adv_N, 0.2, 0.2) - 0.01 * (r_N - 1) ** 2


@dataclass(frozen=True)
class NoBoundOfProduct(Objective):
    """The product of bounded ratios of a sequence has no bound of its own."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.gather(batch.learn_N, "N", "S", "any"), "token", at="S")]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        gap_N = batch.weight_N * (stats.logp_N - batch.logp_old_N).clamp(-60, 60)
        r_S = torch.exp(4 * batch.gather(gap_N, "N", "S", "sum", where=batch.learn_N))
        return {"policy": r_S * batch.gather(batch.adv_N, "N", "S", "mean", where=batch.learn_N)}


class _AlmostExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 1.01 * grads[0] * ctx.saved_tensors[0]


@dataclass(frozen=True)
class HandMadeGradient(Objective):
    """A gradient by hand that is 1 % off."""

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        r_N: Any = _AlmostExp.apply((stats.logp_N - batch.logp_old_N).clamp(-20, 20))
        return surrogate.clipped(r_N, batch.adv_N, 0.2, 0.2)


@dataclass(frozen=True)
class DetachedByHand(Objective):
    """Stops a part with .detach(), which no law can hold fixed; pieces.stop is there for it."""

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        r_N = ratio(stats.logp_N, batch.logp_old_N)
        return r_N.detach().clamp(max=2.0) * batch.adv_N * stats.logp_N


@dataclass(frozen=True)
class ForgetsWeight(Objective):
    """weight_N is not in it: importance corrections would be ignored."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {"policy": self.per_token(batch, stats)}


@dataclass(frozen=True)
class ForgetsKeep(Objective):
    """Dropped tokens teach nothing, but are still counted."""

    def over(self, batch: Batch) -> Tensor:
        return batch.policy_N

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        return torch.where(batch.keep_N, super().per_token(batch, stats), torch.zeros_like(stats.logp_N))


@dataclass(frozen=True)
class CountsOtherTurns(Objective):
    """Values are means over the tokens of a turn that were kept; the turns that are counted are all of the policy's."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.gather(batch.policy_N, "N", "K", "any"), at="K")]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        value_N = batch.weight_N * self.per_token(batch, stats)
        return {"policy": batch.gather(value_N, "N", "K", "mean", where=batch.learn_N)}


@dataclass(frozen=True)
class LearnsTheDropped(Objective):
    """Says that it has a rule for tokens that selection dropped, and learns them like the others."""

    reads = ("adv_N", "dropped")

    def over(self, batch: Batch) -> Tensor:
        return batch.policy_N


@dataclass(frozen=True)
class ReadsTheDropped(Objective):
    """Says that it has a rule for tokens that selection dropped, and has none: nobody reads them as 0 for it."""

    reads = ("adv_N", "dropped")

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        return batch.adv_N * stats.logp_N


@dataclass(frozen=True)
class SelfNormalised(Objective):
    """Divides by the sum of weights without being called so."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.learn_N, 1.0)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        weight_N = torch.where(batch.learn_N, batch.weight_N, torch.zeros_like(batch.weight_N))
        return {"policy": weight_N / weight_N.sum().clamp(min=1e-9) * self.per_token(batch, stats)}


@dataclass(frozen=True)
class SelfNormalisedByCoefficient(Objective):
    """The same, by the coefficient of its term: in any cut the same, and still no coefficient."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        mean = batch.weight_N[batch.learn_N].mean().clamp(min=1e-9)
        return [Term("policy", batch.learn_N, coef=float(1 / mean))]


@dataclass(frozen=True)
class MultipliesByMask(Objective):
    """0 · NaN is NaN: a mask is no multiplication (pitfall 5). Given tokens and dead rows poison the sum."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.learn_N, additive=False)]

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        heard_E = batch.gather(batch.spread(batch.reward_E, "E", "N") * batch.learn_N, "N", "E", "sum")
        return (1 + 0 * heard_E.sum()) * super().per_token(batch, stats)


@dataclass(frozen=True)
class CoefficientOfFailures(Objective):
    """The coefficient is a mean over all rewards: what failed has none, and poisons it."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.learn_N, coef=1 + batch.reward_E.nanmean())]


@dataclass(frozen=True)
class TwoOfOneName(Objective):
    """Two terms of one name: the one would hide the other."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [*super().terms(ctx, batch), Term("policy", batch.learn_N, coef=0.0)]


@dataclass(frozen=True)
class AnotherName(Objective):
    """Values under another name than was declared."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {"policies": super().__call__(ctx, batch, stats)["policy"]}


@dataclass(frozen=True)
class OneValueTooMany(Objective):
    """A value that was never declared."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {**super().__call__(ctx, batch, stats), "bonus": batch.weight_N * stats.logp_N}


@dataclass(frozen=True)
class OneValueTooFew(Objective):
    """A term that never gets a value."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [*super().terms(ctx, batch), Term("bonus", batch.learn_N)]
