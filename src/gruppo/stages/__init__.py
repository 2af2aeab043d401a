"""The ten rooms, one module each: the protocol, the plain default and the shared occupants."""

from gruppo.stages.cast import ByUpdate, Ema, Every, Never, Role
from gruppo.stages.context import Ask, Context, Memory, Prompt, Sampling, StepRecord
from gruppo.stages.method import CHAINS, ROOMS, Method, difference, kind
from gruppo.stages.occupant import Occupant, note, setting
from gruppo.stages.readouts import Need, Stats, need
from gruppo.stages.schedule import Sched, Schedule
from gruppo.stages.terms import Term, Values

__all__ = [
    "CHAINS",
    "ROOMS",
    "Ask",
    "ByUpdate",
    "Context",
    "Ema",
    "Every",
    "Memory",
    "Method",
    "Need",
    "Never",
    "Occupant",
    "Prompt",
    "Role",
    "Sampling",
    "Sched",
    "Schedule",
    "Stats",
    "StepRecord",
    "Term",
    "Values",
    "difference",
    "kind",
    "need",
    "note",
    "setting",
]
