"""Numbers of a finished run, from its curve: `last(held_out)`, `steps_to(held_out, 0.8)`.

If a run never reaches a value, `steps_to` is infinite, and a rule about it is judged by a sign test (verdict.py).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import numpy as np

from gruppo.data.episode import FLAGS
from gruppo.stages.names import nearest

Rows = Sequence[Mapping[str, Any]]
_OF_TURNS = ("tool_calls", *(f"turns/{flag}" for flag in FLAGS))
# Metrics that a step logs above 0 only: where the other one is logged, they are 0.
LEFT_OUT_AT_0 = {f"{of}{name}": f"{of}turns" for of in ("", "held_out/") for name in _OF_TURNS}
LEFT_OUT_AT_0 |= {
    "graded": "accuracy",
    "open": "truncated",
    "bad_gradients": "grad_norm",
    "held_out/failed": "held_out",
}


def last(rows: Rows, metric: str) -> float:
    """The last value."""
    return ([math.nan, *_curve(rows, metric)])[-1]


def mean(rows: Rows, metric: str, count: float = 0) -> float:
    """The mean of the last `count` values; without a count, of all."""
    values = _curve(rows, metric)[-int(count) :]
    return float(np.mean(values)) if values else math.nan


def best(rows: Rows, metric: str) -> float:
    """The largest value."""
    return max(_curve(rows, metric), default=math.nan)


def least(rows: Rows, metric: str) -> float:
    """The smallest value."""
    return min(_curve(rows, metric), default=math.nan)


def drop(rows: Rows, metric: str) -> float:
    """The largest drop below the best value so far; 0 for a curve that only rises."""
    values = np.array(_curve(rows, metric))
    return float((np.maximum.accumulate(values) - values).max()) if len(values) else math.nan


def off(rows: Rows, metric: str, target: float, count: float) -> float:
    """The relative distance of the mean of the last `count` values from a target."""
    return abs(mean(rows, metric, count) / target - 1)


def steps_to(rows: Rows, metric: str, value: float) -> float:
    """The first step at which the metric reaches the value."""
    return next((float(r["step"]) for r in rows if _number(_value(r, metric)) >= value), math.inf)


def spent_to(rows: Rows, spent: str, metric: str, value: float) -> float:
    """The sum of `spent` (say, `sampled`) up to the first step at which the metric reaches the value."""
    total = 0.0
    for r in rows:
        total += max(_number(_value(r, spent)), 0.0)
        if _number(_value(r, metric)) >= value:
            return total
    return math.inf


def spike(rows: Rows, metric: str) -> float:
    """The largest value over the median; 1 for a curve that never changes. Steps at 0 (no gradient) are left out."""
    values = [x for x in _curve(rows, metric) if x > 0]
    return max(values) / float(np.median(values)) if values else math.nan


def apart(rows: Rows, one: str, other: str) -> float:
    """How far the means of two metrics are apart, |log(one / other)|: 0 if they are equal, 2.3 for a factor of ten."""
    a, b = mean(rows, one), mean(rows, other)
    return abs(math.log(a / b)) if a > 0 and b > 0 else math.nan


MEASURES: dict[str, Callable[..., float]] = {
    f.__name__: f for f in (last, mean, best, least, drop, off, steps_to, spent_to, spike, apart)
}


def measure(text: str) -> Callable[[Rows], float]:
    """`name(metric, number…)` as a function of the rows of a run."""
    found = re.fullmatch(r"\s*(\w+)\(([^()]*)\)\s*", text)
    if found is None or found[1] not in MEASURES:
        name = found[1] if found else text
        raise ValueError(
            f"measure {text!r}: nothing of that name can be read from a run{nearest(name, MEASURES)}. Write one of "
            f"{', '.join(MEASURES)} with a metric in brackets, such as last(held_out)."
        )
    words = [w.strip() for w in found[2].split(",") if w.strip()]
    arguments = [float(w) if re.fullmatch(r"-?\d+(\.\d*)?(e-?\d+)?", w) else w for w in words]
    function = MEASURES[found[1]]
    try:
        for wanted, given in zip(list(signature(function).parameters.values())[1:], arguments, strict=False):
            if not isinstance(given, wanted.annotation):
                raise TypeError(f"{given!r} is no {'name of a metric' if wanted.annotation is str else 'number'}")
            if wanted.name == "count" and not (isinstance(given, float | int) and given >= 0 and given == int(given)):
                raise TypeError(f"{given} is no number of values to take the mean of")
        function([], *arguments)
    except (TypeError, ZeroDivisionError) as error:
        raise ValueError(f"measure {text!r}: {error}. {function.__doc__}") from None

    def read(rows: Rows) -> float:
        for name in (a for a in arguments if isinstance(a, str)):
            if not any(name in r or LEFT_OUT_AT_0.get(name) in r for r in rows):
                known = sorted({k for r in rows for k in r} - {"step"})
                raise ValueError(
                    f"measure {text!r}: a run has logged no {name}{nearest(name, known)}, so it has no value. Measure "
                    f"one of {', '.join(known) or 'those of a run that has made a step'}."
                )
        return function(rows, *arguments)

    return read


def _number(x: Any) -> float:
    return -math.inf if x is None or x != x else float(x)


def _curve(rows: Rows, metric: str) -> list[float]:
    return [float(x) for r in rows if (x := _value(r, metric)) is not None]


def _value(row: Mapping[str, Any], metric: str) -> Any:
    """None where it was not logged."""
    left_out = row.get(LEFT_OUT_AT_0.get(metric, "")) is not None
    return 0.0 if left_out and row.get(metric) is None else row.get(metric)
