"""What is remembered? Annotated episodes that come back into later batches, or that other rooms look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gruppo.data import Batch, Episode
from gruppo.stages.context import Context
from gruppo.stages.occupant import Occupant, added

Proximal = Literal["stored", "now"]
Credited = Literal["stored", "now"]


class Replay(Protocol):
    stores: bool  # whether it keeps anything: then episodes are annotated with their logp_old
    proximal: Proximal  # which logp_old is meant for a replayed row
    credited: Credited  # its credit as it was, and no part in statistics of today; or anew, as a group of its own

    def put(self, ctx: Context, store: list[Episode], episodes: Sequence[Episode]) -> list[Episode]: ...

    def get(self, ctx: Context, store: Sequence[Episode]) -> list[Episode]: ...


@dataclass(frozen=True)
class Forget(Occupant):
    """Nothing is remembered: the plain default."""

    stores = False
    proximal = "now"
    credited = "now"

    def put(self, ctx: Context, store: list[Episode], episodes: Sequence[Episode]) -> list[Episode]:
        return []

    def get(self, ctx: Context, store: Sequence[Episode]) -> list[Episode]:
        return []


@dataclass(frozen=True)
class Recent(Occupant):
    """The last `capacity` judged episodes, at most `max_age` steps old; a keyed `take` of them joins each batch."""

    capacity: int = 256
    take: int = 32
    max_age: int = 5
    proximal: Proximal = "stored"
    credited: Credited = added("now")
    stores = True
    witness = {"capacity": 1, "take": 1, "max_age": 0, "proximal": "now", "credited": "stored"}

    def put(self, ctx: Context, store: list[Episode], episodes: Sequence[Episode]) -> list[Episode]:
        fresh = [e for e in (*store, *episodes) if e.status.judged and ctx.step - e.step < self.max_age]
        return fresh[-self.capacity :]

    def get(self, ctx: Context, store: Sequence[Episode]) -> list[Episode]:
        return sorted(store, key=lambda e: ctx.uniform("replay", e.uid))[: self.take]


def recalled(ctx: Context, episodes: Sequence[Episode]) -> Batch:
    """Remembered episodes as a batch, with the logp_old and the credit that they were learned under."""
    batch = ctx.score(episodes, readouts=())
    notes = {n.removeprefix("note_"): x for n, x in batch.columns.items() if n.startswith("note_") and n.endswith("_N")}
    return batch.with_columns(**notes)
