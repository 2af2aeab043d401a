"""Occupants: what a method puts in its rooms. Small frozen dataclasses whose fields are their hyper-parameters."""

from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from functools import cache
from inspect import get_annotations
from math import isnan
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from gruppo.data import Batch
from gruppo.stages.context import Context, Memory, StepRecord
from gruppo.stages.names import nearest
from gruppo.stages.readouts import Need
from gruppo.stages.requires import Requirement


def setting(
    default: Any,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    witness: Any = None,
    added: bool = False,
) -> Any:
    """A field with bounds, which the base class checks for every occupant.

    low, high      the smallest and the largest value
    above, below   the same, exclusive
    witness        values, at least one of which must change what the occupant does (the law `fields_matter`); needed
                   only where the law's own tries (a tenth, three times, 0, the other names) change nothing
    added          the field was added after the first release, and its default changes nothing: records that hold the
                   default keep their hash
    """
    bounds = {"low": low, "above": above, "high": high, "below": below}
    metadata = {k: v for k, v in bounds.items() if v is not None}
    metadata |= {} if witness is None else {"witness": witness if isinstance(witness, list) else [witness]}
    metadata |= {"neutral": default} if added else {}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: dict[Any, Any](default), metadata=metadata, hash=False)
    return field(default=default, metadata=metadata)


class NoteColumn(str):
    """The column of a note that an occupant reads: `note("heated", among=(0, 1))` is "note_heated_E".

    The laws invent values for it: some of `among`, or numbers from 0 to 1.
    """

    among: tuple[float, ...] = ()


def note(name: str, level: Literal["N", "K", "S", "E"] = "E", among: tuple[float, ...] = ()) -> NoteColumn:
    out = NoteColumn(f"note_{name}_{level}")
    out.among = among
    return out


# Attributes of before, and what to write now.
RENAMED = {
    "gives": "writes = (…)",
    "takes": "reads = (…)",
    "makes": "writes = (…), with the source of the tokens",
    "handles": "reads = (…), with the source of the tokens",
    "min_samples": "requires = (Samples(2),)",
    "expects": "requires = (BINARY_REWARD,)",
    "beside": 'requires = (InRoom("room", ("kind",)),)',
    "conflicts": "refuses = (…)",
    "witness": "setting(default, witness=…) in the field",
    "whole": "of_groups = True",
    "answers": 'reads = ("answer_E",)',
    "alone": 'requires = (Samples(2, "why"),)',
    "remembers": "requires = (RecurringTasks(),)",
    "stores": "joins = True or False",
    "notes": 'reads = (note("name"),)',
    "capabilities": "nothing: engines have no list of them yet",
    "roles": "needs(ctx), which names the role",
    "brings": "nothing: a rollout draws what it draws",
}


class Occupant:
    """Base of every occupant. `__call__` is the algorithm and never changes state; `observe` may.

    reads     columns that another occupant writes ("adv_N", or note("exit")), answers ("answer_E"), and sources of
              tokens other than the policy that it handles ("expert", "hint"); an objective that reads "dropped" also
              sees the tokens that selection dropped
    writes    columns, including notes, and sources of tokens other than the policy
    requires  what must hold: a number of samples, other occupants, a kind of reward (gruppo.stages.requires)
    refuses   kinds of occupants that may not be in the same method
    ignores   "shift" or "scale" of rewards: what a credit claims to be invariant to (see the laws)
    """

    version: ClassVar[int] = 1
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    requires: ClassVar[tuple[Requirement, ...]] = ()
    refuses: ClassVar[tuple[str, ...]] = ()
    ignores: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        hints = {n for n, hint in get_annotations(cls).items() if "ClassVar" not in str(hint)}  # fields
        for name in RENAMED.keys() & cls.__dict__.keys() - hints:
            raise ValueError(
                f"{cls.__name__}.{name} is an attribute of an older gruppo and would be ignored. Write {RENAMED[name]}."
            )
        if callable(cls.__dict__.get("refuses")):
            raise ValueError(f"{cls.__name__}.refuses(batch) of an older gruppo is unfit(batch) now. Rename it.")

    def __post_init__(self) -> None:
        said = next((s for s in _wrong_fields(self) if s), "") or self.wrong()  # which may count on the bounds
        if said:
            raise ValueError(said)

    def wrong(self) -> str:
        """Why these values cannot be used together, with the remedy; "" if they can."""
        return ""

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        """What it reads from models."""
        return ()

    def unfit(self, batch: Batch) -> str:
        """Why it cannot learn from the first batch, with the remedy and without a full stop; "" if it can."""
        return ""

    def observe(self, record: StepRecord, memory: Memory) -> None:
        """The only place where state changes: once a step, after the update."""


@cache
def hints_of(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _wrong_fields(occupant: Any) -> Iterable[str]:
    """One sentence for each value that is not in its Literal, or outside its bounds."""
    for f in fields(occupant):
        value, hint = getattr(occupant, f.name), hints_of(type(occupant)).get(f.name)
        if get_origin(hint) is Literal and value not in get_args(hint):
            known = [str(x) for x in get_args(hint)]
            yield (
                f"{f.name}={value!r} is not one of its values{nearest(str(value), known)}, so nothing could be "
                f"computed. Use {', '.join(known)}."
            )
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield _outside(f.name, value, f.metadata)


def _outside(name: str, value: float, bounds: Mapping[str, Any]) -> str:
    low, above, high, below = (bounds.get(k) for k in ("low", "above", "high", "below"))
    inside = (
        (low is None or value >= low)
        and (above is None or value > above)
        and (high is None or value <= high)
        and (below is None or value < below)
    )
    if inside:
        return f"{name}={value} is not a number: nothing could be computed. Use a number." if isnan(value) else ""
    allowed = [f">= {low:g}" if low is not None else f"> {above:g}" if above is not None else ""]
    allowed += [f"<= {high:g}" if high is not None else f"< {below:g}" if below is not None else ""]
    return f"{name}={value} has no meaning here. Use a number {' and '.join(filter(None, allowed))}."
