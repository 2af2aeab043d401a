"""Schedules: a hyper-parameter that changes with the step or with memory.

A field of type `Sched` takes a number or a schedule; as text it reads `linear(0.1, 0.0, steps=100)`. Schedules follow
each other in `then({0: linear(0.0, 1.0, steps=20), 20: cosine(1.0, 0.1, steps=80)})`, each counting from its own start.
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
        values += dict(given.arguments.get("table", {})).values()
        return tuple(x for v in values for x in (v.extremes() if isinstance(v, Schedule) else (float(v),)))

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


def _then(step: int, memory: Mapping[str, Any], table: Mapping[int, "Sched"]) -> float:
    begun = max(k for k in table if k <= max(step, min(table)))
    return at(table[begun], max(step - begun, 0), memory)


def _memory(step: int, memory: Mapping[str, Any], name: str, default: float = 0.0) -> float:
    return memory.get(name, default)


_KINDS = {
    "linear": _linear,
    "cosine": _cosine,
    "warmup": _warmup,
    "steps": _steps,
    "switch": _switch,
    "then": _then,
    "memory": _memory,
}


_TABLES = {  # how those that take a table are written
    "steps": "steps({0: 1.0, 100: 0.5}), with the steps from which on the values hold",
    "then": "then({0: linear(0.0, 1.0, steps=20), 20: 1.0}), with the steps at which numbers or schedules begin",
}


def _literal(node: ast.expr | None) -> Any:
    """A literal, or the text of a schedule as a call; a dict may hold both."""
    if isinstance(node, ast.Dict):
        return {_literal(k): _literal(v) for k, v in zip(node.keys, node.values, strict=True)}
    return node if isinstance(node, ast.Call) else ast.literal_eval(node)  # type: ignore[arg-type]


def _inside(table: Any) -> Any:
    """The table of `then`: numbers and schedules; a schedule that is none says so itself."""
    if not isinstance(table, dict) or not table:
        raise TypeError
    made = {k: Schedule(ast.unparse(v)) if isinstance(v, ast.Call) else v for k, v in table.items()}  # type: ignore[misc]
    if not all(type(k) is int and isinstance(v, Schedule | int | float) for k, v in made.items()):  # type: ignore[misc]
        raise TypeError
    return made


def _parse(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError(text)
        args = [_literal(a) for a in call.args]
        kwargs = {k.arg or "": _literal(k.value) for k in call.keywords}
    except (ValueError, SyntaxError):
        raise ValueError(
            f"{text!r} is no schedule, so the field has no value. Write a number, or for example "
            "linear(0.1, 0.0, steps=100)."
        ) from None
    name = call.func.id
    if name not in _KINDS:
        raise ValueError(f"{name!r} is no kind of schedule{nearest(name, _KINDS)}. Kinds: {', '.join(_KINDS)}.")
    try:
        if name == "then":
            args, kwargs = [_inside(a) for a in args], {k: _inside(v) for k, v in kwargs.items()}
        float(_KINDS[name](0, {}, *args, **kwargs))
    except (TypeError, ValueError, OverflowError) as error:
        if name == "then" and isinstance(error, ValueError):
            raise  # of a schedule inside it
        wanted = ", ".join(list(signature(_KINDS[name]).parameters)[2:])
        empty = any(a == {} for a in [*args, *kwargs.values()])
        why = "says nothing about any step" if empty else "is no schedule"
        usage = _TABLES.get(name, f"{name}({wanted})")
        raise ValueError(f"{text!r} {why}, so the field has no value. Write {usage}.") from None
    return name, args, kwargs
