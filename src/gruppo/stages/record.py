"""Methods as plain tables: TOML round trip and hash. Nothing is ever unpickled."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gruppo.stages.method import Method, kind
from gruppo.stages.names import nearest
from gruppo.stages.schedule import Schedule, is_schedule
from gruppo.tasks.imports import load_object
from gruppo.tasks.loaded import file_of

TALK = ("doc", "paper", "base", "checked", "confidence")  # facts about a method, not part of what it does


def to_table(x: Any, *, brief: bool = False) -> Any:
    """An occupant, role or method as nested tables of TOML values, tagged with `kind = "module:Class@version"`.

    `brief` leaves out fields that were added later and have their default (`setting(..., added=True)`).
    """
    if isinstance(x, Schedule):
        return x.text
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        shown = [f for f in dataclasses.fields(x) if not (brief and _changes_nothing(f, getattr(x, f.name)))]
        fields = {f.name: to_table(getattr(x, f.name), brief=brief) for f in shown}
        return {"kind": tag(type(x)), **{k: v for k, v in fields.items() if v is not None}}
    if isinstance(x, Mapping):
        return {str(k): to_table(v, brief=brief) for k, v in x.items()}
    if isinstance(x, tuple | list):
        return [to_table(v, brief=brief) for v in x]
    if isinstance(x, bool | int | float | str):
        return x
    raise ValueError(
        f"{x!r} cannot be written to a run file, so the run could not be repeated. Fields hold numbers, strings, "
        "lists, tables, occupants and schedules."
    )


def _changes_nothing(f: dataclasses.Field[Any], value: Any) -> bool:
    return "neutral" in f.metadata and value == f.metadata["neutral"]


def tag(cls: type) -> str:
    """`module:Class@version`; for a class in a user's file, the path of the file instead of the module."""
    where = cls.__module__
    if where.startswith("gruppo_user_"):
        where = file_of(where)
    return f"{where}:{cls.__qualname__}@{getattr(cls, 'version', 1) if cls is not Method else 1}"


def from_table(table: Any, at: str = "") -> Any:
    """The inverse of `to_table`. `at` is the path of the table, for messages: "method.update."."""
    if isinstance(table, Mapping) and "kind" in table:
        given = {k: from_table(v, f"{at}{k}.") for k, v in table.items() if k != "kind"}
        return _made(_class(str(table["kind"])), given, at)
    if isinstance(table, Mapping):
        return {k: from_table(v, f"{at}{k}.") for k, v in table.items()}
    if isinstance(table, list | tuple):
        return tuple(from_table(v, _inside(at, v)) for v in table)
    if isinstance(table, str) and is_schedule(table):
        return Schedule(table)
    return table


def _made(cls: Any, given: dict[str, Any], at: str) -> Any:
    known = {f.name for f in dataclasses.fields(cls)}
    for name in given:
        if name not in known:
            raise ValueError(
                f"{cls.__name__} has no field {name!r}{nearest(name, known)}. Fields: {', '.join(sorted(known))}."
            )
    for name in ("cast", "breaks", "writers"):
        if cls is Method and name in given:
            given[name] = MappingProxyType(given[name])
    try:
        return cls(**given)
    except TypeError as error:
        raise ValueError(f"{cls.__name__} cannot be rebuilt from this table: {error}. Fix the table.") from None
    except ValueError as error:
        named = str(error).partition("=")[0] in known
        raise ValueError(f"{at if named else ''}{error}") from None


def _inside(at: str, table: Any) -> str:
    """The path of an occupant in a chain."""
    return f"{at}{kind(_class(str(table['kind'])))}." if isinstance(table, Mapping) and "kind" in table else at


def _class(text: str) -> type:
    path, version = re.fullmatch(r"(.*?)(?:@(\d+))?", text, re.S).groups()  # type: ignore[union-attr]
    try:
        cls: Any = load_object(path)
    except ValueError as error:
        raise ValueError(
            f"{error} The record may be of an older gruppo: use that version, or start again by naming the method."
        ) from None
    if not dataclasses.is_dataclass(cls) or not isinstance(cls, type):
        raise ValueError(f"kind {path} is no dataclass, so the record cannot be rebuilt from it.")
    now = tag(cls).rpartition("@")[2]
    if version and version != now:
        raise ValueError(
            f"kind {path}: the record was written with version {version}, the code is version {now}; numbers would "
            "change. Use the code of that time, or take the new version by naming the method again."
        )
    return cls


def _bare(objective: Any) -> Any:
    """A chain of one as a single occupant, as records held objectives before they were chains."""
    if isinstance(objective, Mapping) and "kind" not in objective:
        return {role: _bare(chain) for role, chain in objective.items()}
    return objective[0] if isinstance(objective, list) and len(objective) == 1 else objective


def record_hash(method: Method) -> str:
    """Depends on everything that a method does, not on the facts about it."""
    table = to_table(method, brief=True)
    for name in TALK:
        table.pop(name, None)
    table["objective"] = _bare(table["objective"])
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]
