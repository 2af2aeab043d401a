"""Mistakes, planted to see that the laws catch them. Each says what is wrong with it; none is used anywhere else."""

import random
from dataclasses import dataclass
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
from gruppo.stages import CHAINS, Context, Memory, Method, Need, Occupant, Sched, Stats, StepRecord, Term, need
from gruppo.stages.credit import GroupNormalised, RunningBaseline, to_tokens
from gruppo.stages.objective import ClippedSurrogate, PolicyGradient, ValueLoss
from gruppo.stages.replay import Recent
from gruppo.stages.reward import OverlongShaping
from gruppo.stages.update import Passes

NOW, OLD = need("logp", when="step"), need("logp", "old")


@dataclass(frozen=True)
class Objective(Occupant):
    """A sound objective, to be spoiled."""

    takes = ("adv_N",)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        return (NOW, OLD)

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        return surrogate.clipped(ratio(stats.logp_N, batch.logp_old_N), batch.adv_N, 0.2, 0.2)

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        return [Term("policy", batch.weight_N * self.per_token(batch, stats), batch.learn_N, "token")]


@dataclass(frozen=True)
class Credit(Occupant):
    """A sound credit, to be spoiled."""

    gives = ("adv_N",)
    min_samples = 2
    alone = "It compares the samples of one prompt."

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return to_tokens(batch, self.per_episode(ctx, batch))

    def per_episode(self, ctx: Context, batch: Batch) -> Tensor:
        return advantage.z_score(batch.reward_E, batch.level("E", "G"), where=batch.judged_E)


# objectives


@dataclass(frozen=True)
class DividesByItsMicroBatch(Objective):
    """The mean over the tokens at hand, not over those of the optimiser step (pitfall 12)."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        value_N = batch.weight_N * self.per_token(batch, stats) / batch.learn_N.sum().clamp(min=1)
        return [Term("policy", value_N, batch.learn_N, 1.0)]


@dataclass(frozen=True)
class CountsByStatistic(Objective):
    """Counts the tokens with a ratio above 1, and still says that it is additive."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        some = batch.learn_N & (stats.logp_N.detach() > batch.logp_old_N)
        return [Term("policy", batch.weight_N * self.per_token(batch, stats), some, "token")]


@dataclass(frozen=True)
class HingeAdditive(Discriminate):
    """DisCO's hinge over the whole step, declared additive; the separation is left out."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        trust = super().__call__(ctx, batch, stats)[1]
        return [Term("trust", trust.value, trust.over, "token")]


@dataclass(frozen=True)
class EpisodeAdditive(Objective):
    """One ratio an episode, although a cut may part its sequences; declared additive."""

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        gap_N = (stats.logp_N - batch.logp_old_N).clamp(-20, 20)
        gap_E = batch.gather(gap_N, "N", "E", "mean", where=batch.learn_N)
        return batch.spread(torch.exp(gap_E), "E", "N") * batch.adv_N


@dataclass(frozen=True)
class CountsByOld(Objective):
    """Counts the tokens that were likely: without logp_old in the batch, the count is made with stand-ins."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        some = batch.learn_N & (batch.logp_old_N > -2.0)
        return [Term("policy", batch.weight_N * self.per_token(batch, stats), some, "token")]


@dataclass(frozen=True)
class CountsFailures(Objective):
    """Tokens of failed episodes are in the denominator (pitfall 21)."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        mine = (batch.source_N == Source.POLICY) & batch.keep_N
        value_N = torch.where(
            batch.learn_N, batch.weight_N * self.per_token(batch, stats), torch.zeros_like(stats.logp_N)
        )
        return [Term("policy", value_N, mine, "token")]


@dataclass(frozen=True)
class CountsBaselines(Objective):
    """Tokens of baseline episodes cannot be learned (they read as 0), but they can be counted."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        mine = (batch.source_N == Source.POLICY) & batch.spread(batch.use_E <= Use.BASELINE, "E", "N")
        adv_N = batch.spread(torch.nan_to_num(batch.reward_E), "E", "N") - 0.5
        return [Term("policy", batch.weight_N * adv_N * stats.logp_N, mine & batch.keep_N, "token")]


@dataclass(frozen=True)
class NoBound(Objective):
    """exp(log π − log π_old) as it comes."""

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        r_N = torch.exp(stats.logp_N - batch.logp_old_N)
        return surrogate.clipped(r_N, batch.adv_N, 0.2, 0.2) - 0.01 * (r_N - 1) ** 2


@dataclass(frozen=True)
class NoBoundOfProduct(Objective):
    """The product of bounded ratios of a sequence has no bound of its own."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        gap_N = batch.weight_N * (stats.logp_N - batch.logp_old_N).clamp(-60, 60)
        r_S = torch.exp(4 * batch.gather(gap_N, "N", "S", "sum", where=batch.learn_N))
        adv_S = batch.gather(batch.adv_N, "N", "S", "mean", where=batch.learn_N)
        return [Term("policy", r_S * adv_S, batch.gather(batch.learn_N, "N", "S", "any"), "token", at="S")]


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

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        return [Term("policy", self.per_token(batch, stats), batch.learn_N, "token")]


@dataclass(frozen=True)
class ForgetsKeep(Objective):
    """Dropped tokens teach nothing, but are still counted."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        value_N = torch.where(
            batch.keep_N, batch.weight_N * self.per_token(batch, stats), torch.zeros_like(stats.logp_N)
        )
        return [Term("policy", value_N, batch.policy_N, "token")]


@dataclass(frozen=True)
class SelfNormalised(Objective):
    """Divides by the sum of weights without being called so."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        weight_N = torch.where(batch.learn_N, batch.weight_N, torch.zeros_like(batch.weight_N))
        share_N = weight_N / weight_N.sum().clamp(min=1e-9)
        return [Term("policy", share_N * self.per_token(batch, stats), batch.learn_N, 1.0)]


@dataclass(frozen=True)
class MultipliesByMask(Objective):
    """0 · NaN is NaN: a mask is no multiplication (pitfall 5). Given tokens and dead rows poison the sum."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        heard_E = batch.gather(batch.spread(batch.reward_E, "E", "N") * batch.learn_N, "N", "E", "sum")
        bonus = 1 + 0 * heard_E.sum()
        return [
            Term(
                "policy", bonus * batch.weight_N * self.per_token(batch, stats), batch.learn_N, "token", additive=False
            )
        ]


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
    """Episodes of use `none` are in the statistics."""

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
    current = False

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

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        push = self.push if isinstance(self.push, float | int) else self.push.value(0, {})
        return [Term("policy", push * batch.weight_N * self.per_token(batch, stats), batch.learn_N, "token")]


@dataclass(frozen=True)
class NumberOnly(Objective):
    """Says that it takes a schedule, and multiplies with it."""

    push: Sched = 0.3

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        return [Term("policy", self.push * batch.weight_N * self.per_token(batch, stats), batch.learn_N, "token")]  # type: ignore[operator]


# other rooms


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

    current = False

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        return torch.arange(batch.size("N")) < batch.size("N") // 2, torch.ones_like(batch.weight_N)


@dataclass(frozen=True)
class CriticMindsHalf(ValueLoss):
    """The critic does not learn what selection dropped, and still counts it."""

    def __call__(self, ctx: Context, batch: Batch, stats: Stats) -> list[Term]:
        [term] = super().__call__(ctx, batch, stats)
        return [
            Term("value", torch.where(batch.keep_N, term.value, torch.zeros_like(term.value)), batch.policy_N, "token")
        ]


@dataclass(frozen=True)
class SaysNothingOfGroups(Credit):
    """A group of one teaches it nothing, and it would start with samples=1 all the same."""

    min_samples = 1


@dataclass(frozen=True)
class PolicyOnly(Occupant):
    """Forgets the other roles that are trained."""

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        learner.step("policy", batch)


@dataclass(frozen=True)
class MovesTheReference(Occupant):
    """Copies the policy over its reference."""

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        learner.step("policy", batch)
        learner.copy("policy", "ref")


@dataclass(frozen=True)
class StoppedSign(Objective):
    """Sound: a stopped factor, through pieces.stop. Stands here to show that the law lets it pass."""

    takes = ("adv_N",)

    def per_token(self, batch: Batch, stats: Stats) -> Tensor:
        return stop(ratio(stats.logp_N, batch.logp_old_N)).clamp(max=2.0) * batch.adv_N * stats.logp_N


def spoiled(**rooms: Any) -> Method:
    """A sound method with something spoiled in it; a single occupant of a chain is the whole chain."""
    rooms = {r: (o,) if r in CHAINS else o for r, o in rooms.items()}
    return method("grpo").but(
        **{"name": "spoiled", "penalties": (), "objective": Objective(), "credit": Credit(), **rooms}
    )


SPOILED: dict[str, tuple[str, Method]] = {
    "divides by its micro-batch": ("micro_batches", spoiled(objective=DividesByItsMicroBatch())),
    "one ratio an episode, additive": ("micro_batches", spoiled(objective=EpisodeAdditive())),
    "counts by a statistic, additive": ("fused_is_two_pass", spoiled(objective=CountsByStatistic())),
    "hinge of the whole step, additive": (
        "fused_is_two_pass",
        method("disco").but(name="spoiled", objective=HingeAdditive()),
    ),
    "counts by logp_old": ("lazy_old", spoiled(objective=CountsByOld())),
    "credit by row": ("order", spoiled(credit=ReadsTheRow())),
    "reward by row": ("order", spoiled(reward=RewardByPlace())),
    "episodes by row": ("order", spoiled(select=DropsByPlace())),
    "tokens by row": ("order", spoiled(select=KeepsByPlace())),
    "multiplies by a mask": ("nan_mask", spoiled(objective=MultipliesByMask())),
    "scale of dead rows": ("nan_mask", spoiled(credit=NanThroughTheMean())),
    "failures in the mean": ("failures", spoiled(credit=FailuresAreZero())),
    "failures in the denominator": ("failures", spoiled(objective=CountsFailures())),
    "failures in memory": ("failures", spoiled(credit=FailuresInMemory())),
    "put aside, and counted": ("unused", spoiled(credit=PutAsideCounts())),
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
    "schedule at step 0": ("schedules", spoiled(objective=FirstStepOnly())),
    "schedule as a number": ("schedules", spoiled(objective=NumberOnly())),
}
SOUND = {"plain": spoiled(), "stopped": spoiled(objective=StoppedSign())}
# Those that must raise: there is no gradient to compare.
RAISES = {
    "writes memory in a call", "writes deeper", "remembers an object", "wants a batch", "holds a function",
    "schedule as a number",
}  # fmt: skip
