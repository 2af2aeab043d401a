"""What occupants require, checked before the run, or on the first batch before the first update."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gruppo.data import Batch, Source, Use

if TYPE_CHECKING:
    from gruppo.stages.method import Method


class Requirement:
    """One thing that must hold. A check returns what is missing, with the remedy; "" if nothing is."""

    @property
    def called(self) -> str:
        """Its name in messages."""
        return ""

    def before(self, method: "Method", room: str, kind: str, samples: int) -> str:
        """Before the run, for the occupant `kind` in `room`."""
        return ""

    def at_first_batch(self, batch: Batch) -> str:
        """On the first batch, before the first update; without a full stop."""
        return ""


@dataclass(frozen=True)
class Samples(Requirement):
    """At least `least` samples of a prompt."""

    least: int = 2
    why: str = "It compares the samples of one prompt, so a single sample has no advantage."

    def before(self, method: "Method", room: str, kind: str, samples: int) -> str:
        if samples >= self.least:
            return ""
        return (
            f"samples={samples}: {method.name} has {kind} in {room}. {self.why} "
            f"Use samples >= {self.least}, or a method without groups such as method=reinforce."
        )


@dataclass(frozen=True)
class Promised(Requirement):
    """What the engine must promise (gruppo.engines.base.PROMISES)."""

    promise: str
    why: str = ""


@dataclass(frozen=True)
class InRoom(Requirement):
    """One of these kinds in another room: the other half of one mechanism. Subclasses count."""

    room: str
    kinds: tuple[str, ...]

    def before(self, method: "Method", room: str, kind: str, samples: int) -> str:
        from gruppo.stages.method import CHAINS
        from gruppo.stages.method import kind as kind_of

        here = [o for r, o in method.occupants() if r == self.room]
        if {kind_of(c) for o in here for c in type(o).__mro__}.intersection(self.kinds):
            return ""
        return (
            f"{method.name}: {kind} in {room} requires {' or '.join(self.kinds)} in {self.room}, which has "
            f"{', '.join(map(kind_of, here)) or 'nothing'}: it would not do what it says. Use "
            f"method.{self.room}{'+=' if self.room in CHAINS else '='}{self.kinds[0]}, or another {room}."
        )


@dataclass(frozen=True)
class Outputs(Requirement):
    """A role whose value head has so many outputs."""

    role: str
    outputs: int

    def before(self, method: "Method", room: str, kind: str, samples: int) -> str:
        has = (
            method.cast[self.role].outputs if self.role in method.cast else self.outputs
        )  # an absent role is told else
        if has == self.outputs:
            return ""
        return (
            f"{method.name}: {kind} in {room} reads {self.outputs} outputs of the role {self.role!r}, which has {has}. "
            f"Use method.cast.{self.role}.outputs={self.outputs}, or another {room}."
        )


@dataclass(frozen=True)
class RecurringTasks(Requirement):
    """Tasks that recur, because something is remembered about each. A run in which few recur is warned, not refused."""


@dataclass(frozen=True)
class RecurringStates(Requirement):
    """States that several turns of a group begin in, to be compared there. A run in which none recurs is warned."""


@dataclass(frozen=True)
class StepsOfTasks(Requirement):
    """Tasks that say what the steps of a right answer are, and answers of several turns. A run without is refused."""

    @property
    def called(self) -> str:
        return "answers in steps"

    def at_first_batch(self, batch: Batch) -> str:
        if batch.size("K") > batch.size("E"):
            return ""
        return (
            "every answer of the first batch is one turn, so no step would ever be paid. End a turn after each step: "
            'method.rollout.steps=" " for numbers in a row, a line break for lines. If that is set, the policy writes '
            "no steps yet: train it on answers that have them first"
        )


@dataclass(frozen=True)
class FactsOfTurns(Requirement):
    """What a world of ours records of turns, such as tools, tags and flags. Without them it does nothing, which is
    right where there is one turn; a trainer that plays its own turns and does not record them is refused.
    """

    facts: str


@dataclass(frozen=True)
class SeveralSeats(Requirement):
    """Several agents, each with a return of its own. A world with one seat is refused; one answer is one seat's, too.

    The methods that declare it are those that a run recommends where seats are to be told apart.
    """


@dataclass(frozen=True)
class OneTurn(Requirement):
    """Episodes of one answer: it cuts an answer where a world would have heard it. A world is refused."""


@dataclass(frozen=True)
class OfBatch(Requirement):
    """A property of the first batch."""

    name: str
    missing: Callable[[Batch], str]

    @property
    def called(self) -> str:
        return self.name

    def at_first_batch(self, batch: Batch) -> str:
        return self.missing(batch)


def _binary_reward(batch: Batch) -> str:
    values = torch.unique(batch.reward_E[batch.judged_E])
    if len(values) > 2:
        return (
            f"rewards have {len(values)} different values, and it takes right or wrong. Use a task or a reward with "
            "two values"
        )
    if len(values) == 2 and not bool(values[0] <= 0 < values[1]):
        return (
            f"rewards are {float(values[0]):g} and {float(values[1]):g}, but right is above 0 and wrong is not: all "
            "would be the same. Use a task or a reward of 0 and 1"
        )
    return ""


def _pairs(batch: Batch) -> str:
    """Recorded answers without a pair are refused; sampled groups may all be equal at first."""
    if batch.size("P") or not bool((batch.source_E == Source.EXPERT).all()):
        return ""
    return (
        "no task has two recorded answers of different reward, so there is nothing to compare. Use a preference file, "
        "task=preference, or pairs of sampled answers with method.rollout=group"
    )


def _baseline_episodes(batch: Batch) -> str:
    if bool((batch.judged_E & (batch.use_E == Use.BASELINE)).any()):
        return ""
    return (
        "no episode is one, or none was judged, so every advantage would be 0. Use a rollout that makes them, such as "
        "method.rollout=with_greedy"
    )


BINARY_REWARD = OfBatch("binary_reward", _binary_reward)
PAIRS = OfBatch("pairs", _pairs)
BASELINE_EPISODES = OfBatch("baseline_episodes", _baseline_episodes)
