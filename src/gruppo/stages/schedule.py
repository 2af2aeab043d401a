"""Schedules: a hyper-parameter that changes with the step or with memory.

A field of type `Sched` takes a number or a schedule; as text it reads `linear(0.1, 0.0, steps=100)`.
"""

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

from gruppo.stages.names import nearest


@dataclass(frozen=True)
class Schedule:
    """Text such as `cosine(1.0, 0.1, steps=100)`; `value(step, memory)` evaluates it."""

    text: str

    def __post_init__(self) -> None:
        _parse(self.text)

    def value(self, step: int, memory: Mapping[str, Any]) -> float:
        name, args, kwargs = _parse(self.text)
        return float(_KINDS[name](step, memory, *args, **kwargs))

    def extremes(self) -> tuple[float, ...]:
        """Numbers between which all its values lie, as far as the text says; memory may hold any."""
        name, args, kwargs = _parse(self.text)
        given = signature(_KINDS[name]).bind(0, {}, *args, **kwargs)
        given.apply_defaults()
        values = [
            given.arguments[k] for k in ("start", "end", "value", "first", "then", "default") if k in given.arguments
        ]
        return tuple(float(v) for v in [*values, *dict(given.arguments.get("table", {})).values()])

    def __str__(self) -> str:
        return self.text


Sched = float | Schedule


def at(sched: Sched | str, step: int, memory: Mapping[str, Any]) -> float:
    if isinstance(sched, str):
        sched = Schedule(sched)
    return sched.value(step, memory) if isinstance(sched, Schedule) else float(sched)


def is_schedule(text: str) -> bool:
    return "(" in text and text.split("(")[0].strip() in _KINDS


def _share(step: int, steps: int) -> float:
    return min(max(step / steps, 0.0), 1.0) if steps > 0 else 1.0


def _linear(step: int, memory: Mapping[str, Any], start: float, end: float, steps: int) -> float:
    return start + (end - start) * _share(step, steps)


def _cosine(step: int, memory: Mapping[str, Any], start: float, end: float, steps: int) -> float:
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * _share(step, steps)))


def _warmup(step: int, memory: Mapping[str, Any], value: float, steps: int) -> float:
    return value * min((step + 1) / steps, 1.0) if steps > 0 else value


def _steps(step: int, memory: Mapping[str, Any], table: Mapping[int, float]) -> float:
    return dict(table)[max(k for k in table if k <= max(step, min(table)))]


def _switch(step: int, memory: Mapping[str, Any], at: int, first: float, then: float) -> float:
    return first if step < at else then


def _memory(step: int, memory: Mapping[str, Any], name: str, default: float = 0.0) -> float:
    return memory.get(name, default)


_KINDS = {
    "linear": _linear,
    "cosine": _cosine,
    "warmup": _warmup,
    "steps": _steps,
    "switch": _switch,
    "memory": _memory,
}


def _parse(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError(text)
        args = [ast.literal_eval(a) for a in call.args]
        kwargs = {k.arg or "": ast.literal_eval(k.value) for k in call.keywords}
    except (ValueError, SyntaxError):
        raise ValueError(
            f"{text!r} is no schedule, so the field has no value. Write a number, or for example "
            "linear(0.1, 0.0, steps=100)."
        ) from None
    name = call.func.id
    if name not in _KINDS:
        raise ValueError(f"{name!r} is no kind of schedule{nearest(name, _KINDS)}. Kinds: {', '.join(_KINDS)}.")
    try:
        float(_KINDS[name](0, {}, *args, **kwargs))
    except (TypeError, ValueError, OverflowError):
        wanted = ", ".join(list(signature(_KINDS[name]).parameters)[2:])
        raise ValueError(f"{text!r} is no schedule, so the field has no value. Write {name}({wanted}).") from None
    return name, args, kwargs
