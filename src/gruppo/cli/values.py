"""Text and TOML values converted to the types of fields: by pydantic, but the sentences are ours."""

import re
import textwrap
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import Field, TypeAdapter, ValidationError

from gruppo.fields import allowed
from gruppo.stages import Schedule
from gruppo.stages.names import nearest
from gruppo.stages.schedule import is_schedule

NO_BOUNDS: Mapping[str, Any] = MappingProxyType({})


def coerce(value: Any, hint: Any, path: str, bounds: Mapping[str, Any] = NO_BOUNDS, strict: bool = False) -> Any:
    """Text, or a TOML value, converted to the type of a field; `bounds` are for the message."""
    schedules = hint is not Any and Schedule in (hint, *get_args(hint))
    if isinstance(value, str) and (schedules or hint is Any) and is_schedule(value):
        return Schedule(value)
    given = value
    if not strict:
        value = _parts(value) if isinstance(value, str) and str(hint).startswith("tuple") else value
        value = _whole(value) if hint is int else value
        value = tuple(map(_whole, value)) if hint == tuple[int, ...] and isinstance(value, tuple | list) else value
    both = Annotated[float | str, Field(union_mode="left_to_right")]  # a mean is a number or a name
    wanted: Any = both if hint is Any else float if schedules else hint
    if isinstance(value, bool) and wanted in (int, float, both):
        value = str(value)  # true is no number, and in a TOML file it is a mistake
    try:
        return TypeAdapter(wanted).validate_python(value, strict=strict)
    except ValidationError:
        wrong, right = _wanted(float if schedules else hint, bounds)
        near = nearest(str(given), map(str, get_args(hint))) if get_origin(hint) is Literal else ""
        extra = ", or a schedule such as linear(0.1, 0.0, steps=100)" if schedules else ""
        said = textwrap.shorten(str(given), 80, placeholder=" …")
        raise ValueError(f"{path}={said} is not {wrong}{near}, so nothing was started. Use {right}{extra}.") from None


def _parts(text: str) -> tuple[str, ...]:
    return tuple(v.strip() for v in text.split(",") if v.strip())


def _whole(value: Any) -> Any:
    """1e3 and "1e3" as 1000; anything else as it is."""
    if isinstance(value, str):
        with suppress(ValueError):
            return int(value)
        with suppress(ValueError):
            number = float(value)
            return int(number) if number.is_integer() else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _wanted(hint: Any, bounds: Mapping[str, Any]) -> tuple[str, str]:
    """What a value is not, and what to use, in words."""
    if hint in (int, float):
        return "a whole number" if hint is int else "a number", allowed(bounds, hint)
    if get_origin(hint) is Literal:
        return "one of its values", ", ".join(map(str, get_args(hint)))
    words = {
        bool: ("a truth value", "true or false"),
        str: ("text", "text in quotes"),
        Any: ("a name or a number",) * 2,
    }
    words |= {tuple[int, ...]: ("a list of whole numbers", "whole numbers with commas between them, such as 1,4,16")}
    words |= {tuple[str, ...]: ("a list of words", "words with commas between them")}
    plain = getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint)
    return words.get(hint, (f"a value for a field of type {plain}", f"a {plain}"))


def plain_value(text: str) -> Any:
    """Numbers, true, false, lists and quoted strings as in TOML; anything else is the text itself."""
    if re.fullmatch(r"true|false|[-+]?[0-9][0-9_]*(\.[0-9]+)?([eE][-+]?[0-9]+)?|\[.*\]|\".*\"", text, re.S):
        with suppress(tomllib.TOMLDecodeError):
            return tomllib.loads(f"v = {text}")["v"]
    return text
