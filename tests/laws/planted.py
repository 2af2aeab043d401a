"""Mistakes, planted to see that the laws catch them. Each says what is wrong with it; none is used anywhere else."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sound import Credit, Objective
from torch import Tensor
from wrong_credits import (
    CancellingVariance,
    ClaimsScale,
    ClaimsShift,
    FailuresAreZero,
    FailuresInMemory,
    HiddenState,
    NanThroughTheMean,
    NoGuard,
    PutAsideCounts,
    RawReward,
    ReadsTheRow,
    RemembersAnObject,
    UnkeyedRandomness,
    UpsideDown,
    UpsideDownWhereEasy,
    WantsABatch,
    WritesDeeper,
    WritesInCall,
    WritesLess,
    WritesMore,
)
from wrong_objectives import (
    AnotherName,
    CalmOfTheStep,
    CoefficientOfFailures,
    CountsBaselines,
    CountsByOld,
    CountsByRow,
    CountsByStatistic,
    CountsFailures,
    CountsOtherTurns,
    DetachedByHand,
    DividesByItsMicroBatch,
    EpisodeAdditive,
    ForgetsKeep,
    ForgetsWeight,
    HandMadeGradient,
    HingeAdditive,
    LearnsTheDropped,
    MultipliesByMask,
    NoBound,
    NoBoundOfProduct,
    OneValueTooFew,
    OneValueTooMany,
    ReadsTheDropped,
    SelfNormalised,
    SelfNormalisedByCoefficient,
    TwoOfOneName,
)

from gruppo.data import Batch
from gruppo.methods import method
from gruppo.pieces.ratio import ratio
from gruppo.pieces.stop import stop
from gruppo.stages import CHAINS, Context, Method, Occupant, Sched, Stats, Term, Values
from gruppo.stages.credit import GroupCentred, GroupNormalised
from gruppo.stages.objective import ClippedSurrogate, PolicyGradient, ValueLoss
from gruppo.stages.replay import Recent
from gruppo.stages.reward import OverlongShaping
from gruppo.stages.update import Passes
from gruppo.train.cast import average

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
    "a column that is not declared": ("columns", spoiled(credit=WritesMore())),
    "a column that is not returned": ("columns", spoiled(credit=WritesLess())),
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
