"""Occupants: what stands in a room. A small frozen dataclass whose fields are its hyper-parameters."""

from dataclasses import field
from typing import Any, ClassVar

from gruppo.stages.context import Context, Memory, StepRecord
from gruppo.stages.readouts import Need


def added(neutral: Any) -> Any:
    """A field that came after the first release, with the value that changes nothing.

    Records that hold this value keep their hash: what they compute is what they computed without the field.
    """
    return field(default=neutral, metadata={"neutral": neutral})


class Occupant:
    """Base of every occupant. `__call__` is the algorithm and never changes state; `observe` may."""

    version: ClassVar[int] = 1
    gives: ClassVar[tuple[str, ...]] = ()  # columns that credit makes
    takes: ClassVar[tuple[str, ...]] = ()  # columns that an objective or selection reads
    ignores: ClassVar[tuple[str, ...]] = ()  # "shift", "scale" of rewards: claims of a credit (laws)
    expects: ClassVar[tuple[str, ...]] = ()  # named predicates of the first batch (stages/check.py)
    conflicts: ClassVar[tuple[str, ...]] = ()  # snake-case kinds that may not stand in the same method
    capabilities: ClassVar[frozenset[str]] = frozenset()  # of the engine
    makes: ClassVar[frozenset[str]] = frozenset()  # token sources besides the policy's that this occupant makes
    handles: ClassVar[frozenset[str]] = frozenset()  # token sources besides the policy's that it has a rule for
    roles: ClassVar[tuple[str, ...]] = ()  # roles it samples from or scores with, besides its needs
    min_samples: ClassVar[int] = 1
    alone: ClassVar[str] = ""  # why fewer than min_samples make no sense
    witness: ClassVar[
        dict[str, Any]
    ] = {}  # field -> another value, or a list of such, that must change something (laws)

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        """What it wants to know from a model."""
        return ()

    def observe(self, record: StepRecord, memory: Memory) -> None:
        """The only place where state changes: once a step, after the update."""
