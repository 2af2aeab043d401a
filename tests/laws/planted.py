"""Mistakes, planted to see that the laws catch them. Each says what is wrong with it; none is used anywhere else."""

import random
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Batch, Source, Use
from gruppo.methods import method
from gruppo.methods.disco import Discriminate
from gruppo.pieces import advantage, surrogate
from gruppo.pieces.ratio import ratio
from gruppo.pieces.stop import stop
from gruppo.stages import CHAINS, Context, Memory, Method, Need, Occupant, Sched, Stats, StepRecord, Term, Values, need
from gruppo.stages.credit import COMPARES, GroupCentred, GroupNormalised, RunningBaseline, to_tokens
from gruppo.stages.objective import ClippedSurrogate, PolicyGradient, ValueLoss
from gruppo.stages.replay import Recent
from gruppo.stages.reward import OverlongShaping
from gruppo.stages.update import Passes
from gruppo.train.cast import average

NOW, OLD = need("logp", when="step"), need("logp", "old")


@dataclass(frozen=True)
class Objective(Occupant):
    """A sound objective, to be spoiled."""

    reads = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", self.over(batch), "token")]

    def over(self, batch: Batch) -> Tensor:
        return batch.learn_N

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        return {"policy": batch.weight_N * self.per_token(batch, stats)}

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        return surrogate.clipped(ratio(stats.logp_N, batch.logp_old_N), batch.adv_N, 0.2, 0.2)


@dataclass(frozen=True)
class Credit(Occupant):
    """A sound credit, to be spoiled."""

    writes = ("adv_N",)
    requires = (COMPARES,)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return to_tokens(batch, self.per_episode(ctx, batch))

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        return advantage.z_score(batch.reward_E, batch.level("E", "G"), where=batch.judged_E)


# objectives


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


# credits


@dataclass(frozen=True)
class ReadsTheRow(Credit):
    """The first half of the batch gets more (pitfall 25)."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        half = torch.arange(batch.size("E")) < batch.size("E") // 2
        return super().per_episode(ctx, batch) * torch.where(half, 1.0, 0.5)


@dataclass(frozen=True)
class FailuresAreZero(Credit):
    """A failed episode enters the mean of its group as a reward of 0 (pitfall 21)."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        reward_E = torch.where(torch.isnan(batch.reward_E), torch.zeros_like(batch.reward_E), batch.reward_E)
        inside = batch.use_E <= Use.BASELINE
        return torch.where(inside, advantage.z_score(reward_E, batch.level("E", "G"), where=inside), 0.0 * reward_E)


@dataclass(frozen=True)
class FailuresInMemory(RunningBaseline):
    """The running mean counts failed episodes as 0: seen one step later."""

    def observe(self, record: StepRecord, memory: Memory) -> None:
        if record.batch is not None:
            memory["baseline"] = float(torch.nan_to_num(record.batch.reward_E).mean())


@dataclass(frozen=True)
class PutAsideCounts(Credit):
    """Episodes apart are in the statistics of the others."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        inside = ~torch.isnan(batch.reward_E)
        return advantage.z_score(batch.reward_E, batch.level("E", "G"), where=inside)


@dataclass(frozen=True)
class NoGuard(Credit):
    """(R − mean) / std, and nothing for a group of equal rewards (pitfall 16)."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        reward_E = torch.where(batch.judged_E, batch.reward_E, torch.zeros_like(batch.reward_E))
        groups = batch.level("E", "G")
        mean = batch.gather(reward_E, "E", groups, "mean", where=batch.judged_E)[groups.index]
        square = batch.gather((reward_E - mean) ** 2, "E", groups, "mean", where=batch.judged_E)[groups.index]
        return torch.where(batch.judged_E, (reward_E - mean) / square.sqrt(), torch.zeros_like(mean))


@dataclass(frozen=True)
class CancellingVariance(Credit):
    """E[x²] − E[x]²: what is left of equal rewards is rounding, and its root is divided by (pitfall 16)."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        x = torch.where(batch.judged_E, batch.reward_E, torch.zeros_like(batch.reward_E))
        groups = batch.level("E", "G")
        mean, square = (batch.gather(y, "E", groups, "mean", where=batch.judged_E)[groups.index] for y in (x, x * x))
        z = (x - mean) / (square - mean * mean).abs().sqrt().clamp(min=1e-30)
        return torch.where(batch.judged_E, z, torch.zeros_like(z))


@dataclass(frozen=True)
class RawReward(Credit):
    """No baseline at all."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        return torch.where(batch.judged_E, batch.reward_E, torch.zeros_like(batch.reward_E))


@dataclass(frozen=True)
class ClaimsShift(Credit):
    """Half a baseline, which claims to be a whole one."""

    ignores = ("shift",)

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        mean = batch.gather(batch.reward_E, "E", "G", "mean", where=batch.judged_E)
        adv_E = batch.reward_E - 0.5 * batch.spread(mean, "G", "E")
        return torch.where(batch.judged_E, adv_E, torch.zeros_like(adv_E))


@dataclass(frozen=True)
class ClaimsScale(Credit):
    """Centred, not divided by the deviation, which claims that scale does not matter."""

    ignores = ("shift", "scale")

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        return advantage.leave_one_out(batch.reward_E, batch.level("E", "G"), where=batch.judged_E)


@dataclass(frozen=True)
class UpsideDown(Credit):
    """Worse than the others is better."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        return -super().per_episode(ctx, batch)


@dataclass(frozen=True)
class UpsideDownWhereEasy(Credit):
    """The sign is wrong in one kind of group only; summed over the batch, it still looks right."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        adv_E, groups = super().per_episode(ctx, batch), batch.level("E", "G")
        biggest = (
            batch.gather(batch.judged_E, "E", groups, "sum") == batch.gather(batch.judged_E, "E", groups, "sum").max()
        )
        small = ~biggest | (torch.arange(groups.size) != int(torch.nonzero(biggest)[0]))
        return torch.where(small[groups.index], -0.1 * adv_E, adv_E)


@dataclass(frozen=True)
class NanThroughTheMean(Credit):
    """Divides by a scale of the whole batch, of which dead rows are a part: 0 · NaN is NaN."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        alive = batch.judged_E.to(batch.reward_E.dtype)
        size = (
            (torch.nan_to_num(batch.reward_E, nan=0.0, posinf=float("inf"), neginf=-float("inf")) * alive).abs().sum()
        )
        return super().per_episode(ctx, batch) / (1 + size)


# state


@dataclass(frozen=True)
class WritesInCall(Credit):
    """State changes while it is read."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        ctx.memory["seen"] = ctx.memory.get("seen", 0) + 1
        return super().per_episode(ctx, batch)


@dataclass(frozen=True)
class WritesDeeper(Credit):
    """The same, inside a table that memory holds."""

    def observe(self, record: StepRecord, memory: Memory) -> None:
        memory.setdefault("table", {})

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        if "table" in ctx.memory:
            ctx.memory["table"]["seen"] = True
        return super().per_episode(ctx, batch)


@dataclass(frozen=True)
class HiddenState(Credit):
    """Keeps a count where no checkpoint looks."""

    calls: ClassVar[list[int]] = []

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        self.calls.append(1)
        return super().per_episode(ctx, batch) * (1 + 0.01 * len(self.calls))


@dataclass(frozen=True)
class UnkeyedRandomness(Credit):
    """Draws from a generator that a resumed run would not find where it was."""

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        return super().per_episode(ctx, batch) * (1 + 0.1 * random.random())


@dataclass(frozen=True)
class RemembersAnObject(Credit):
    """A set cannot be in a checkpoint."""

    def observe(self, record: StepRecord, memory: Memory) -> None:
        memory["seen"] = {e.uid for e in record.episodes}


@dataclass(frozen=True)
class WantsABatch(Credit):
    """A step may have nothing to learn from; this one falls over."""

    def observe(self, record: StepRecord, memory: Memory) -> None:
        assert record.batch is not None
        memory["size"] = record.batch.size("E")


# records and fields


@dataclass(frozen=True)
class HoldsAFunction(Credit):
    """A field that no run file can hold."""

    transform: Any = abs


@dataclass(frozen=True)
class ChangesItself(Credit):
    """Halves its field each time it is made: the record would not repeat the run."""

    strength: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", self.strength / 2)


@dataclass(frozen=True)
class IgnoredField(ClippedSurrogate):
    """clip_more is accepted and does nothing."""

    clip_more: float = 0.1


@dataclass(frozen=True)
class IgnoredAndNaN(Objective):
    """An ignored field in an objective that is NaN, and so never equal to itself."""

    temper: float = 1.0

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        return super().per_token(batch, stats) * float("nan")


@dataclass(frozen=True)
class IgnoredInReward(OverlongShaping):
    patience: int = 3


@dataclass(frozen=True)
class IgnoredInSelect(Occupant):
    keep_most: float = 0.5

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        return torch.ones_like(batch.keep_N), torch.ones_like(batch.weight_N)


@dataclass(frozen=True)
class IgnoredInUpdate(Passes):
    warm: int = 2


@dataclass(frozen=True)
class IgnoredInReplay(Recent):
    capacity: int = 6
    take: int = 3
    max_age: int = 4
    fresh: int = 1


@dataclass(frozen=True)
class IgnoredInCredit(GroupNormalised):
    floor: float = 0.1


@dataclass(frozen=True)
class FirstStepOnly(Objective):
    """Takes a schedule and reads it at step 0 for ever."""

    push: Sched = 0.3

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        push = self.push if isinstance(self.push, float | int) else self.push.value(0, {})
        return [Term("policy", batch.learn_N, coef=push)]


@dataclass(frozen=True)
class NumberOnly(Objective):
    """Says that it takes a schedule, and multiplies with it."""

    push: Sched = 0.3

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("policy", batch.learn_N, coef=self.push)]  # type: ignore[arg-type]


# other rooms


@dataclass(frozen=True)
class ComparesWithAll(Occupant):
    """A reward that compares the answers of a prompt and does not say so (`of_groups`): it is shown answers that are
    put aside, too."""

    def __call__(self, ctx: Context, episodes: Any) -> dict[str, Any]:
        groups: dict[str, list[float]] = {}
        for e in episodes:
            groups.setdefault(e.group, []).append(e.total)
        return {"easy": [e.total * sum(groups[e.group]) / len(groups[e.group]) for e in episodes]}


@dataclass(frozen=True)
class RewardByPlace(Occupant):
    """A component that depends on where an episode stands."""

    def __call__(self, ctx: Context, episodes: Any) -> dict[str, Any]:
        return {"place": np.arange(len(episodes)) / 10}


@dataclass(frozen=True)
class DropsByPlace(Occupant):
    """Keeps every second episode of what it is shown."""

    def episodes(self, ctx: Context, episodes: Any) -> tuple[list[bool], list[Any]]:
        return [i % 2 == 0 for i in range(len(episodes))], []


@dataclass(frozen=True)
class KeepsByPlace(Occupant):
    """Keeps the first half of the tokens of a batch."""

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        return torch.arange(batch.size("N")) < batch.size("N") // 2, torch.ones_like(batch.weight_N)


@dataclass(frozen=True)
class CriticMindsHalf(ValueLoss):
    """The critic does not learn what selection dropped, and still counts it."""

    def terms(self, ctx: Context, batch: Batch) -> list[Term]:
        return [Term("value", batch.policy_N)]

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> Values:
        value_N = super().__call__(ctx, batch, stats)["value"]
        return {"value": torch.where(batch.keep_N, value_N, torch.zeros_like(value_N))}


@dataclass(frozen=True)
class SaysNothingOfGroups(Credit):
    """A group of one teaches it nothing, and it would start with samples=1 all the same."""

    requires = ()


@dataclass(frozen=True)
class PolicyOnly(Occupant):
    """Forgets the other roles that are trained."""

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        learner.step("policy", batch)


@dataclass(frozen=True)
class MovesTheReference(Occupant):
    """Copies the policy over its reference, without asking the learner."""

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        learner.step("policy", batch)
        average(learner.models["policy"], learner.models["ref"], 1.0)


@dataclass(frozen=True)
class StoppedSign(Objective):
    """Sound: a stopped factor, through pieces.stop. Stands here to show that the law lets it pass."""

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        return stop(ratio(stats.logp_N, batch.logp_old_N)).clamp(max=2.0) * batch.adv_N * stats.logp_N


@dataclass(frozen=True)
class FailuresAreNan(Credit):
    """Credit less a mean that has the episodes in it that have no reward."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        mean_G = batch.gather(batch.reward_E, "E", "G", "mean")
        return {"adv_N": batch.spread(batch.reward_E - batch.spread(mean_G, "G", "E"), "E", "N")}


@dataclass(frozen=True)
class OverDeviation(Credit):
    """Credit over a deviation that may be 0."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        std_G = batch.gather(batch.reward_E, "E", "G", "std", where=batch.judged_E)
        known_E = torch.where(batch.judged_E, batch.reward_E, 0.0)
        return {"adv_N": batch.spread(known_E / batch.spread(std_G, "G", "E"), "E", "N")}


def spoiled(**rooms: Any) -> Method:
    """A sound method with something spoiled in it; a single occupant of a chain is the whole chain."""
    rooms = {r: (o,) if r in CHAINS and isinstance(o, Occupant) else o for r, o in rooms.items()}
    return method("grpo").but(
        **{"name": "spoiled", "penalties": (), "objective": Objective(), "credit": Credit(), **rooms}
    )


SPOILED: dict[str, tuple[str, Method]] = {
    "no reward in the mean": ("finite", spoiled(credit=FailuresAreNan())),
    "over a deviation of 0": ("finite", spoiled(credit=OverDeviation())),
    "divides by its micro-batch": ("micro_batches", spoiled(objective=DividesByItsMicroBatch())),
    "one ratio an episode, additive": ("micro_batches", spoiled(objective=EpisodeAdditive())),
    "a chain with a drift of its micro-batch": (
        "micro_batches",
        spoiled(objective=(ClippedSurrogate(), CalmOfTheStep())),
    ),
    "counts by a statistic, additive": ("fused_is_two_pass", spoiled(objective=CountsByStatistic())),
    "hinge of the whole step, additive": (
        "fused_is_two_pass",
        method("disco").but(name="spoiled", objective=HingeAdditive()),
    ),
    "counts by logp_old": ("lazy_old", spoiled(objective=CountsByOld())),
    "counts by row": ("order", spoiled(objective=CountsByRow())),
    "credit by row": ("order", spoiled(credit=ReadsTheRow())),
    "reward by row": ("order", spoiled(reward=RewardByPlace())),
    "episodes by row": ("order", spoiled(select=DropsByPlace())),
    "tokens by row": ("order", spoiled(select=KeepsByPlace())),
    "learns what was dropped": ("nan_mask", spoiled(objective=LearnsTheDropped())),
    "reads the dropped without a rule": ("nan_mask", spoiled(objective=ReadsTheDropped())),
    "a coefficient of failures": ("nan_mask", spoiled(objective=CoefficientOfFailures())),
    "multiplies by a mask": ("nan_mask", spoiled(objective=MultipliesByMask())),
    "scale of dead rows": ("nan_mask", spoiled(credit=NanThroughTheMean())),
    "failures in the mean": ("failures", spoiled(credit=FailuresAreZero())),
    "failures in the denominator": ("failures", spoiled(objective=CountsFailures())),
    "failures in memory": ("failures", spoiled(credit=FailuresInMemory())),
    "put aside, and counted": ("unused", spoiled(credit=PutAsideCounts())),
    "put aside, and compared with": ("unused", spoiled(reward=ComparesWithAll(), credit=GroupCentred())),
    "counts baselines": ("unused", spoiled(objective=CountsBaselines())),
    "no guard for equal groups": ("equal_rewards", spoiled(credit=NoGuard())),
    "variance that cancels": ("equal_rewards", spoiled(credit=CancellingVariance())),
    "no baseline": ("equal_rewards", spoiled(credit=RawReward())),
    "claims shift": ("shift", spoiled(credit=ClaimsShift())),
    "claims scale": ("scale", spoiled(credit=ClaimsScale())),
    "upside down": ("direction", spoiled(credit=UpsideDown())),
    "upside down in one group": ("direction", spoiled(credit=UpsideDownWhereEasy())),
    "no bound": ("extremes", spoiled(objective=NoBound())),
    "no bound of a product": ("extremes", spoiled(objective=NoBoundOfProduct())),
    "a gradient by hand": ("finite_differences", spoiled(objective=HandMadeGradient())),
    "detached by hand": ("finite_differences", spoiled(objective=DetachedByHand())),
    "forgets weights": ("keep_and_weight", spoiled(objective=ForgetsWeight())),
    "counts dropped tokens": ("keep_and_weight", spoiled(objective=ForgetsKeep())),
    "counts turns that were dropped": ("keep_and_weight", spoiled(objective=CountsOtherTurns())),
    "self-normalised by a coefficient": (
        "keep_and_weight",
        spoiled(objective=SelfNormalisedByCoefficient()),
    ),
    "self-normalised in secret": ("keep_and_weight", spoiled(objective=SelfNormalised())),
    "a critic that minds half": (
        "keep_and_weight",
        method("ppo").but(name="spoiled", objective={"policy": PolicyGradient(), "critic": CriticMindsHalf()}),
    ),
    "says nothing of groups": ("alone", spoiled(credit=SaysNothingOfGroups())),
    "a critic that never learns": ("roles", method("ppo").but(name="spoiled", update=PolicyOnly())),
    "a reference that moves": ("roles", spoiled(update=MovesTheReference())),
    "writes memory in a call": ("memory", spoiled(credit=WritesInCall())),
    "writes deeper": ("memory", spoiled(credit=WritesDeeper())),
    "hidden state": ("memory", spoiled(credit=HiddenState())),
    "randomness without a key": ("memory", spoiled(credit=UnkeyedRandomness())),
    "remembers an object": ("memory", spoiled(credit=RemembersAnObject())),
    "wants a batch": ("memory", spoiled(credit=WantsABatch())),
    "holds a function": ("record", spoiled(credit=HoldsAFunction())),
    "changes itself": ("record", spoiled(credit=ChangesItself())),
    "ignored field": ("fields_matter", spoiled(objective=IgnoredField())),
    "ignored field, NaN": ("fields_matter", spoiled(objective=IgnoredAndNaN())),
    "ignored field of a credit": ("fields_matter", spoiled(credit=IgnoredInCredit())),
    "ignored field of a reward": ("fields_matter", spoiled(reward=IgnoredInReward())),
    "ignored field of select": ("fields_matter", spoiled(select=IgnoredInSelect())),
    "ignored field of an update": ("fields_matter", spoiled(update=IgnoredInUpdate())),
    "ignored field of a replay": ("fields_matter", spoiled(replay=IgnoredInReplay())),
    "two terms of one name": ("micro_batches", spoiled(objective=TwoOfOneName())),
    "values under another name": ("micro_batches", spoiled(objective=AnotherName())),
    "a value that was not declared": ("micro_batches", spoiled(objective=OneValueTooMany())),
    "a term without a value": ("micro_batches", spoiled(objective=OneValueTooFew())),
    "schedule at step 0": ("schedules", spoiled(objective=FirstStepOnly())),
    "schedule as a number": ("schedules", spoiled(objective=NumberOnly())),
}
SOUND = {"plain": spoiled(), "stopped": spoiled(objective=StoppedSign())}
# Those that must raise: there is no gradient to compare.
RAISES = {
    "writes memory in a call", "writes deeper", "remembers an object", "wants a batch", "holds a function",
    "schedule as a number", "counts by logp_old", "two terms of one name", "values under another name",
    "a value that was not declared", "a term without a value",
}  # fmt: skip
