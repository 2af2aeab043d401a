"""What is remembered? Annotated episodes that come back into later batches, or that other rooms look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gruppo.data import Batch, Episode
from gruppo.stages.context import Context
from gruppo.stages.occupant import Occupant, setting

Proximal = Literal["stored", "now"]
Credited = Literal["stored", "now"]


class Replay(Protocol):
    """`get` recalls episodes at the start of a step: every room finds them in `ctx.replay`."""

    joins: bool  # whether they also join the batch and are learned from
    proximal: Proximal  # which log π_old is meant for a replayed row
    credited: Credited  # its credit as it was, and no part in statistics of today; or anew, as a group of its own

    def put(self, ctx: Context, store: list[Episode], episodes: Sequence[Episode]) -> list[Episode]: ...

    def get(self, ctx: Context, store: Sequence[Episode]) -> list[Episode]: ...


@dataclass(frozen=True)
class Forget(Occupant):
    """Nothing is remembered: the plain default."""

    joins = False
    proximal = "now"
    credited = "now"

    def put(self, ctx: Context, store: list[Episode], episodes: Sequence[Episode]) -> list[Episode]:
        return []

    def get(self, ctx: Context, store: Sequence[Episode]) -> list[Episode]:
        return []


@dataclass(frozen=True)
class Recent(Occupant):
    """The last `capacity` judged episodes, at most `max_age` steps old; a keyed `take` of them joins each batch."""

    capacity: int = setting(256, low=1, witness=1)
    take: int = setting(32, low=0, witness=1)
    max_age: int = setting(5, low=0)
    proximal: Proximal = "stored"
    credited: Credited = setting("now", added=True)
    joins = True

    def put(self, ctx: Context, store: list[Episode], episodes: Sequence[Episode]) -> list[Episode]:
        fresh = [e for e in (*store, *episodes) if e.status.judged and ctx.step - e.step < self.max_age]
        return fresh[-self.capacity :]

    def get(self, ctx: Context, store: Sequence[Episode]) -> list[Episode]:
        return sorted(store, key=lambda e: ctx.uniform("replay", e.uid))[: self.take]


def as_learned(ctx: Context, episodes: Sequence[Episode]) -> Batch:
    """Remembered episodes as a batch, with the log π_old and the credit that they were learned under."""
    batch = ctx.read(episodes, readouts=())
    notes = {n.removeprefix("note_"): x for n, x in batch.columns.items() if n.startswith("note_") and n.endswith("_N")}
    return batch.with_columns(**notes)
