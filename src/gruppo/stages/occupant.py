"""Occupants: what a method puts in its rooms. Small frozen dataclasses whose fields are their hyper-parameters."""

from inspect import get_annotations
from typing import Any, ClassVar, Literal

from gruppo.data import Batch
from gruppo.fields import Checked, hints_of, setting
from gruppo.stages.context import Context, Memory, StepRecord
from gruppo.stages.readouts import Need
from gruppo.stages.requires import Requirement

__all__ = ["RENAMED", "NoteColumn", "Occupant", "hints_of", "note", "setting"]


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
    "capabilities": 'requires = (Promised("steer"),)',
    "roles": "needs(ctx), which names the role",
    "brings": "nothing: a rollout draws what it draws",
}


class Occupant(Checked):
    """Base of every occupant. `__call__` is the algorithm and never changes state; `observe` may.

    reads     columns that another occupant writes ("adv_N", or note("exit")), answers ("answer_E"), and sources of
              tokens other than the policy that it handles ("expert", "hint"); an objective that reads "dropped" also
              sees the tokens that selection dropped
    writes    columns, including notes, and sources of tokens other than the policy
    requires  what must hold: a number of samples, other occupants, a kind of reward (gruppo.stages.requires)
    refuses   kinds of occupants that may not be in the same method
    corrects  whether it looks at what the sampler's weights said (logp_gen_N), so that older ones do little harm
    ignores   "shift" or "scale" of rewards: what a credit claims to be invariant to (see the laws)
    """

    version: ClassVar[int] = 1
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    requires: ClassVar[tuple[Requirement, ...]] = ()
    refuses: ClassVar[tuple[str, ...]] = ()
    corrects: ClassVar[bool] = False
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

    def needs(self, ctx: Context) -> tuple[Need, ...]:
        """What it reads from models."""
        return ()

    def unfit(self, batch: Batch) -> str:
        """Why it cannot learn from the first batch, with the remedy and without a full stop; "" if it can."""
        return ""

    def observe(self, record: StepRecord, memory: Memory) -> None:
        """The only place where state changes: once a step, after the update."""
