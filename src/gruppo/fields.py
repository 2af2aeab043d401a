"""Settings with a range: what a field may hold, checked in one place for occupants and for the settings of a run."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import Field, field, fields
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

BOUNDS = ("low", "above", "high", "below")
LARGEST_WHOLE = 2**63 - 1  # of a tensor, and of a TOML file
LARGEST_REAL = 3e38  # of a tensor in float32


def setting(
    default: Any,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    also: float | None = None,
    infinite: bool = False,
    why: str = "",
    witness: Any = None,
    added: bool = False,
) -> Any:
    """A field with bounds, which the base class checks whenever one is made.

    low, high      the smallest and the largest value
    above, below   the same, exclusive
    also           one value outside these bounds that has a meaning of its own, such as 0 for greedy
    infinite       infinity has a meaning; elsewhere it is refused
    why            what is wrong with a value outside, for the message
    witness        values, at least one of which must change what the occupant does (the law `fields_matter`); needed
                   only where the law's own tries (a tenth, three times, 0, the other names) change nothing
    added          the field was added after the first release, and its default changes nothing: records that hold the
                   default keep their hash
    """
    bounds = {"low": low, "above": above, "high": high, "below": below, "also": also}
    metadata: dict[str, Any] = {k: v for k, v in bounds.items() if v is not None}
    metadata |= {"infinite": True} if infinite else {}
    metadata |= {"why": why} if why else {}
    metadata |= {} if witness is None else {"witness": witness if isinstance(witness, list) else [witness]}
    metadata |= {"neutral": default} if added else {}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: dict[Any, Any](default), metadata=metadata, hash=False)
    return field(default=default, metadata=metadata)


class Checked:
    """Base of frozen dataclasses whose values are checked when one is made."""

    def __post_init__(self) -> None:
        said = next(wrong_fields(self), "") or self.wrong()  # which may count on the bounds
        if said:
            raise ValueError(said)

    def wrong(self) -> str:
        """Why these values cannot be used together, with the remedy; "" if they can."""
        return ""


@cache
def hints_of(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def wrong_fields(node: Any) -> Iterator[str]:
    """One sentence for each value that is not in its Literal, or outside its bounds.

    A whole number that was given as a float becomes one.
    """
    for f in fields(node):
        value, hint = getattr(node, f.name), hints_of(type(node)).get(f.name)
        if get_origin(hint) is Literal and value not in get_args(hint):
            yield unknown_word(f"{f.name}={value!r}", str(value), hint)
            continue
        if (hint is str and not isinstance(value, str)) or (hint is bool and not isinstance(value, bool)):
            yield f"{f.name}={value!r} is not {'text: use text in quotes' if hint is str else 'true or false'}."
            continue
        if hint in (int, float) and (isinstance(value, bool) or not isinstance(value, int | float)):
            yield f"{f.name}={value!r} is not a number: use {allowed(f.metadata, hint)}."
            continue
        if hint is int and isinstance(value, float) and value.is_integer():
            object.__setattr__(node, f.name, value := int(value))
        if said := outside(f"{f.name}={value}", value, f, hint):
            yield said


def unknown_word(said: str, value: str, hint: Any) -> str:
    from gruppo.stages.names import nearest  # not above: the stages import this module

    known = [str(x) for x in get_args(hint)]
    return (
        f"{said} is not one of its values{nearest(value, known)}, so nothing could be computed. Use {', '.join(known)}."
    )


def outside(said: str, value: Any, f: Field[Any], hint: Any) -> str:
    """Why a number, or a schedule of numbers, cannot be the value of a field; "" if it can. `said`: "path=value"."""
    if hasattr(value, "extremes"):
        numbers = [(f"{said} reaches {x:g}, which", x) for x in value.extremes()]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        numbers = [(said, value)]
    else:
        return ""
    return next((s for said, x in numbers if (s := _outside(said, x, f.metadata, hint))), "")


def _outside(said: str, x: float, bounds: Mapping[str, Any], hint: Any) -> str:
    why = _why(x, bounds, hint)
    return f"{said} {why}: use {allowed(bounds, hint)}." if why else ""


def _why(x: float, bounds: Mapping[str, Any], hint: Any) -> str:
    if x != x:
        return "is not a number"
    if hint is int and isinstance(x, float) and not x.is_integer():
        return "is not a whole number"
    if hint is int and not -LARGEST_WHOLE - 1 <= x <= LARGEST_WHOLE:
        return "is out of range, because it has more than 64 bits"
    low, above, high, below = (bounds.get(k) for k in BOUNDS)
    inside = (
        (low is None or x >= low)
        and (above is None or x > above)
        and (high is None or x <= high)
        and (below is None or x < below)
    )
    if not inside and x != bounds.get("also", math.nan):
        return f"is out of range, because {bounds['why']}" if "why" in bounds else "is out of range"
    if abs(x) > LARGEST_REAL and not bounds.get("infinite"):
        return "is not finite" if abs(x) == math.inf else "is out of range, because float32 ends at 3e38"
    return ""


def allowed(bounds: Mapping[str, Any], hint: Any) -> str:
    """`0, or a number >= 1e-06`: what a field takes, in words."""
    low, above, high, below = (bounds.get(k) for k in BOUNDS)
    limits = [f">= {_short(low)}" if low is not None else f"> {_short(above)}" if above is not None else ""]
    limits += [f"<= {_short(high)}" if high is not None else f"< {_short(below)}" if below is not None else ""]
    number = " ".join(
        filter(None, ["a whole number" if hint is int else "a number", " and ".join(filter(None, limits))])
    )
    number += ", or inf" if bounds.get("infinite") else ""
    return f"{_short(bounds['also'])}, or {number}" if "also" in bounds else number


def _short(x: float) -> str:
    return f"{x:g}" if x % 1 or abs(x) >= 1e9 else f"{x:.0f}"
