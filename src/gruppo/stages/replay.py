"""What is remembered? Annotated episodes that come back into later batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gruppo.data import Episode
from gruppo.stages.context import Context
from gruppo.stages.occupant import Occupant

Proximal = Literal["stored", "now"]


class Replay(Protocol):
    stores: bool  # whether it keeps anything: then episodes are annotated with their logp_old
    proximal: Proximal  # which logp_old is meant for a replayed row

    def put(self, ctx: Context, store: list[Episode], episodes: Sequence[Episode]) -> list[Episode]: ...

    def get(self, ctx: Context, store: Sequence[Episode]) -> list[Episode]: ...


@dataclass(frozen=True)
class Forget(Occupant):
    """Nothing is remembered: the plain default."""

    stores = False
    proximal = "now"

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
    stores = True
    witness = {"capacity": 1, "take": 1, "max_age": 0, "proximal": "now"}

    def put(self, ctx: Context, store: list[Episode], episodes: Sequence[Episode]) -> list[Episode]:
        fresh = [e for e in (*store, *episodes) if e.status.judged and ctx.step - e.step < self.max_age]
        return fresh[-self.capacity :]

    def get(self, ctx: Context, store: Sequence[Episode]) -> list[Episode]:
        return sorted(store, key=lambda e: ctx.uniform("replay", e.uid))[: self.take]
