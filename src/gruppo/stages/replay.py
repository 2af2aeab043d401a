"""What is remembered? Episodes that join later batches, or that other rooms look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gruppo.data import Batch, Episode
from gruppo.stages.context import Context
from gruppo.stages.occupant import Occupant, setting

Proximal = Literal["stored", "now"]
Credited = Literal["stored", "now"]


class Replay(Protocol):
    """`get` recalls episodes at the start of a step, for every room in `ctx.replay`; `put` stores those of the step.

    Recalled episodes join the batch in groups of their own. A replay that puts them into groups of this step, or in
    place of other episodes, has `insert(ctx, kept)`, which returns what is learned from instead of `kept`.
    """

    joins: bool  # whether recalled episodes join the batch, to be learned from
    proximal: Proximal  # log π_old of a replayed row: as stored, or of this step
    credited: Credited  # credit of a replayed row: as stored, outside all statistics; or of this step, in its own group

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
    """The last `capacity` judged episodes, at most `max_age` steps old; `take` random ones join each batch."""

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


def as_learned(ctx: Context, episodes: Sequence[Episode], columns: Sequence[str] = ()) -> Batch:
    """Remembered episodes as a batch, with the log π_old and the credit that they were learned with.

    columns  of credit that are not of tokens, such as right_E; other notes of such levels are not credit
    """
    batch = ctx.read(episodes, readouts=())
    notes = {n.removeprefix("note_"): x for n, x in batch.columns.items() if n.startswith("note_")}
    return batch.with_columns(**{n: x for n, x in notes.items() if n.endswith("_N") or n in columns})
