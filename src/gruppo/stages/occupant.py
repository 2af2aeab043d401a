"""Occupants: what stands in a room. A small frozen dataclass whose fields are its hyper-parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from gruppo.data import Batch
from gruppo.stages.context import Context, Memory, StepRecord
from gruppo.stages.readouts import Need


def added(neutral: Any) -> Any:
    """A field that came after the first release, with the value that changes nothing.

    Records that hold this value keep their hash: what they compute is what they computed without the field.
    """
    return field(default=neutral, metadata={"neutral": neutral})


@dataclass(frozen=True)
class Noted:
    """A note that an occupant reads: its level, and what it may be (nothing said: any number from 0 to 1).

    The laws make such notes up.
    """

    level: Literal["N", "K", "S", "E"] = "E"
    among: tuple[float, ...] = ()


class Occupant:
    """Base of every occupant. `__call__` is the algorithm and never changes state; `observe` may."""

    version: ClassVar[int] = 1
    gives: ClassVar[tuple[str, ...]] = ()  # columns that credit makes; of another room, notes: note_NAME_LEVEL
    takes: ClassVar[tuple[str, ...]] = ()  # columns that an objective or selection reads
    notes: ClassVar[Mapping[str, "Noted"]] = {}  # notes of episodes that it reads; another room gives note_NAME_LEVEL
    ignores: ClassVar[tuple[str, ...]] = ()  # "shift", "scale" of rewards: claims of a credit (laws)
    expects: ClassVar[tuple[str, ...]] = ()  # named predicates of the first batch (stages/check.py)
    conflicts: ClassVar[tuple[str, ...]] = ()  # snake-case kinds that may not stand in the same method
    beside: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # room -> kinds, one of which must stand there
    capabilities: ClassVar[frozenset[str]] = frozenset()  # of the engine
    makes: ClassVar[frozenset[str]] = frozenset()  # token sources besides the policy's that this occupant makes
    handles: ClassVar[frozenset[str]] = frozenset()  # token sources besides the policy's that it has a rule for
    brings: ClassVar[int] = 0  # of the samples of a prompt, those that a rollout has from elsewhere and does not draw
    roles: ClassVar[tuple[str, ...]] = ()  # roles it samples from or scores with, besides its needs
    whole: ClassVar[bool] = False  # of a reward: it compares a group, so it comes when all draws of a step are made
    replaces: ClassVar[tuple[str, ...]] = ()  # of a reward: components that are recorded, but paid no more
    remembers: ClassVar[bool] = False  # something of each task: it needs tasks that come again
    answers: ClassVar[bool] = False  # whether it reads Episode.answer or answer_E
    min_samples: ClassVar[int] = 1
    alone: ClassVar[str] = ""  # why fewer than min_samples make no sense
    witness: ClassVar[
        dict[str, Any]
    ] = {}  # field -> another value, or a list of such, that must change something (laws)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        """What it wants to know from a model."""
        return ()

    def refuses(self, batch: Batch) -> str:
        """What makes the first batch impossible for it, with the remedy and without a full stop; "" if nothing does.

        `expects` names what several occupants ask for; this may look at the occupant's own fields.
        """
        return ""

    def observe(self, record: StepRecord, memory: Memory) -> None:
        """The only place where state changes: once a step, after the update."""
