"""`key=value` on the tree of a run: paths are ours, values are pydantic's.

tyro, jsonargparse and pydantic-settings were tried on the real record (docs/design/configuration.md): none takes a
room from a named method, edits a chain by name, or keeps the key=value form, so the paths are walked here; pydantic
turns text into the type of a field and says what is wrong with it.
"""

import dataclasses
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache, reduce
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from gruppo.methods import all_methods, method
from gruppo.stages import CHAINS, ROOMS, Ema, Every, Method, Never, Occupant, Role, Schedule, kind
from gruppo.stages.check import subclasses
from gruppo.stages.method import added
from gruppo.stages.names import nearest
from gruppo.stages.record import from_table
from gruppo.stages.schedule import is_schedule
from gruppo.tasks.imports import load_object
from gruppo.train.config import RunConfig

REFRESH = {kind(c): c for c in (Never, Every, Ema)}
PLAIN = {f.name: f.default for f in dataclasses.fields(Method) if f.name in ROOMS}
Setting = tuple[str, str, Any]  # path, operator, value


def apply(config: RunConfig, tokens: Sequence[str]) -> RunConfig:
    """The run with these settings, whole before part: `method=` comes before `method.credit.eps=`."""
    return apply_settings(config, [parsed(t) for t in tokens])


def parsed(token: str) -> Setting:
    m = re.fullmatch(r"([\w.]+)(\+=|-=|=)(.*)", token, re.S)
    if not m:
        raise ValueError(
            f"{token!r} is no setting, so nothing was started. Write key=value, or for a chain key+=name, key-=name."
        )
    return m[1], m[2], m[3]


def apply_settings(config: RunConfig, settings: Sequence[Setting]) -> RunConfig:
    for path, op, value in sorted(settings, key=lambda s: s[0].count(".")):
        config = _put(config, path.split("."), op, value, path)
    return config


def from_toml(table: Mapping[str, Any], config: RunConfig) -> RunConfig:
    """A run file: the whole resolved tree, or the settings that differ from the defaults."""
    if "kind" not in table:
        return apply_settings(config, list(_settings(table)))
    whole = from_table(table)
    verify(whole)
    return whole


def verify(node: Any, at: str = "") -> None:
    """Refuses a value that is not of its field's type: a resolved run file may have been edited by hand."""
    if isinstance(node, tuple):
        for o in node:
            verify(o, f"{at}{kind(o)}.")
    elif isinstance(node, Mapping):
        for k, v in node.items():
            verify(v, f"{at}{k}.")
    elif dataclasses.is_dataclass(node) and not isinstance(node, Schedule):
        for f in dataclasses.fields(node):
            value = getattr(node, f.name)
            if isinstance(value, bool | int | float | str):
                coerce(value, _hints(type(node))[f.name], at + f.name, strict=True)
            verify(value, f"{at}{f.name}.")


def _settings(table: Mapping[str, Any], at: str = "") -> Iterator[Setting]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{at}{key}.")
        else:
            path = f"{at}{key}"
            yield ("method" if path == "method.name" else path), "=", value


def _put(node: Any, path: list[str], op: str, value: Any, whole: str) -> Any:
    """The node with one place in it changed."""
    path = _where_it_stands(node, path, whole) if isinstance(node, Method) else path
    key, rest = path[0], path[1:]
    if isinstance(node, tuple):
        return _put_in_chain(node, key, rest, op, value, whole)
    if isinstance(node, Mapping):
        if not rest:
            return {
                **node,
                key: Role(start=str(value)) if whole.startswith("method.cast.") else _occupant(whole, key, value),
            }
        return {**node, key: _put(node[_known(key, node, whole)], rest, op, value, whole)}
    names = [f.name for f in dataclasses.fields(node)] if dataclasses.is_dataclass(node) else []
    if key not in names:
        raise ValueError(_unknown(key, names, whole, node))
    before = getattr(node, key)
    if isinstance(before, Mapping) and not isinstance(node, Method):
        after = _put_in_table(before, rest, op, value, whole)
    elif rest:
        after = _put(before, rest, op, value, whole)
    elif isinstance(node, Method) and key in ROOMS:
        return _refurnish(node, key, op, value, whole)
    else:
        after = _leaf(node, key, op, value, whole)
    return dataclasses.replace(node, **{key: after})  # type: ignore[type-var]


def _where_it_stands(m: Method, path: list[str], whole: str) -> list[str]:
    """The path of an occupant that is named by its kind, where the chain named has none of that kind.

    Occupants move: heated_likelihood was a penalty once, and claims that are committed still call it one.
    """
    room, *rest = path
    if room not in CHAINS or len(rest) < 2:
        return path
    held = {(r,): getattr(m, r) for r in CHAINS if not isinstance(getattr(m, r), Mapping)}
    if isinstance(m.objective, Mapping):
        held |= {("objective", role): chain for role, chain in m.objective.items()}
    found = [at for at, chain in held.items() if rest[0] in map(kind, chain)]
    if not found or (room,) in found:
        return path
    if len(found) > 1:
        raise ValueError(
            f"{whole}: there is {rest[0]} in {' and in '.join('.'.join(at) for at in found)}, so nothing was started. "
            "Name the one that is meant."
        )
    return [*found[0], *rest]


def _put_in_table(table: Mapping[str, Any], path: list[str], op: str, value: Any, whole: str) -> dict[str, Any]:
    """A table of plain values, whose names are not ours: task.args.tolerance=0.01."""
    if not path or op != "=" or path[0] == "kind":
        raise ValueError(
            f"{whole}{op}{value}: {whole} is a table of values, so nothing was started. Set one of them: "
            f"{whole if not path else whole.rpartition('.')[0]}.NAME=VALUE, with any NAME but kind."
        )
    key, rest = path[0], path[1:]
    inner = table.get(key, {})
    if rest:
        return {**table, key: _put_in_table(inner if isinstance(inner, Mapping) else {}, rest, op, value, whole)}
    return {**table, key: plain_value(value) if isinstance(value, str) else value}


def plain_value(text: str) -> Any:
    """Numbers, true, false, lists and quoted texts as TOML writes them; anything else is the text itself."""
    if re.fullmatch(r"true|false|[-+]?[0-9][0-9_]*(\.[0-9]+)?([eE][-+]?[0-9]+)?|\[.*\]|\".*\"", text, re.S):
        with suppress(tomllib.TOMLDecodeError):
            return tomllib.loads(f"v = {text}")["v"]
    return text


def _put_in_chain(
    chain: tuple[Any, ...], key: str, rest: list[str], op: str, value: Any, whole: str
) -> tuple[Any, ...]:
    here = {kind(o): i for i, o in enumerate(chain)}
    if key not in here and not rest:  # method.objective.clip_high=0.3: the first occupant that has such a field
        owners = [name for name, i in here.items() if key in [f.name for f in dataclasses.fields(chain[i])]]
        key, rest = (owners[0], [key]) if owners else (key, rest)
    index = here[_known(key, here, whole)]
    if not rest:
        raise ValueError(
            f"{whole}{op}{value}: {key} is an occupant, so its field is missing. Write {whole}.FIELD=VALUE."
        )
    return (*chain[:index], _put(chain[index], rest, op, value, whole), *chain[index + 1 :])


def _known(key: str, known: Mapping[str, Any], whole: str) -> str:
    if key not in known:
        raise ValueError(
            f"{whole}: there is no {key!r} here{nearest(key, known)}. There is: {', '.join(known) or 'nothing'}."
        )
    return key


def _unknown(key: str, names: list[str], whole: str, node: Any) -> str:
    deep: dict[str, str] = {}  # the last part of a path, and the shortest such path
    for path in sorted(paths(RunConfig()), key=lambda p: p.count(".")):
        deep.setdefault(path.rpartition(".")[2], path)
    close = [key] if key in deep else [] if nearest(key, names) else get_close_matches(key, deep, n=1, cutoff=0.7)
    hint = f" (did you mean {deep[close[0]]}?)" if close else nearest(key, names)
    return (
        f"{whole}: {type(node).__name__} has no {key!r}{hint}, so nothing was started. It has: "
        f"{', '.join(names) or 'no fields'}."
    )


def paths(node: Any, at: str = "") -> Iterator[str]:
    """Every path that can be set."""
    if dataclasses.is_dataclass(node):
        for f in dataclasses.fields(node):
            yield at + f.name
            yield from paths(getattr(node, f.name), f"{at}{f.name}.")
    elif isinstance(node, tuple):
        for o in node:
            yield from paths(o, f"{at}{kind(o)}.") if isinstance(o, Occupant) else ()
    elif isinstance(node, Mapping):
        for k, v in node.items():
            yield from paths(v, f"{at}{k}.")


def _leaf(node: Any, key: str, op: str, value: Any, whole: str) -> Any:
    if op != "=":
        raise ValueError(
            f"{whole}{op}{value}: {whole} is no chain. Write {whole}=VALUE; chains are {', '.join(CHAINS)}."
        )
    before = getattr(node, key)
    if whole == "method.cast":
        raise ValueError(
            f"{whole}={value}: the cast is one model for each role, so nothing was started. Set a role: "
            f"method.cast.ROLE=FOLDER; {', '.join(before)} are there. A room that needs a role brings it along."
        )
    if isinstance(before, Method):
        return method(str(value))
    if isinstance(before, tuple(REFRESH.values())):
        return REFRESH[_known(str(value), REFRESH, whole)]()
    if dataclasses.is_dataclass(before) and not isinstance(before, Schedule):
        if "name" in [f.name for f in dataclasses.fields(before)]:
            return _put(before, ["name"], "=", value, f"{whole}.name")
        raise ValueError(
            f"{whole}={value}: it has fields of its own. Set one of them, for example "
            f"{next(paths(before, whole + '.'))}."
        )
    return coerce(value, _hints(type(node))[key], whole)


def coerce(value: Any, hint: Any, whole: str, strict: bool = False) -> Any:
    """Text, or a TOML value, as the type of a field."""
    schedules = hint is not Any and Schedule in (hint, *get_args(hint))
    if isinstance(value, str) and (schedules or hint is Any) and is_schedule(value):
        return Schedule(value)
    if isinstance(value, str) and str(hint).startswith("tuple"):
        value = tuple(v.strip() for v in value.split(",") if v.strip())
    if hint is Any:  # a mean is a name or a number
        hint = Annotated[float | str, Field(union_mode="left_to_right")]
    try:
        return TypeAdapter(float if schedules else hint).validate_python(value, strict=strict)
    except ValidationError as error:
        said = error.errors()[0]["msg"]
        extra = ", or a schedule such as linear(0.1, 0.0, steps=100)" if schedules else ""
        raise ValueError(
            f"{whole}={value}: {said}{extra}. Nothing was started; write {whole}=VALUE with such a value."
        ) from None


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


# rooms


def _refurnish(m: Method, room: str, op: str, value: Any, whole: str) -> Method:
    if op != "=" and room not in CHAINS:
        raise ValueError(
            f"{whole}{op}{value}: {room} holds one occupant, no chain. Write {whole}={value}; chains "
            f"are {', '.join(CHAINS)}."
        )
    chain = getattr(m, room)
    if op == "-=":
        _known(str(value), {kind(o): o for o in chain}, whole)
        return dataclasses.replace(m, **{room: tuple(o for o in chain if kind(o) != value)})
    if str(value) in ("", "none") and room in CHAINS:
        return dataclasses.replace(m, **{room: ()})
    if str(value) in all_methods():
        return _taken(m, room, op, all_methods()[str(value)])
    new = _occupant(whole, room, value)
    held = (added(chain, new) if op == "+=" else (new,)) if room in CHAINS else new
    return dataclasses.replace(m, **{room: held})


def _taken(m: Method, room: str, op: str, other: Method) -> Method:
    """The room of another method, with the roles it needs, and with the rooms it only makes sense together with.

    `+=` adds to chains. A room of one occupant that comes along takes the place of the plain default only.
    """
    rooms = other.together if room in other.together else (room,)
    changes: dict[str, Any] = {}
    for r in rooms:
        theirs = getattr(other, r)
        if op == "+=" and r in CHAINS:
            changes[r] = reduce(added, theirs, getattr(m, r))
        elif op == "+=" and getattr(m, r) not in (theirs, PLAIN.get(r)):
            raise ValueError(
                f"method.{room}+={other.name}: it comes with {_names(theirs)} in {r}, which would take the place of "
                f"{m.name}'s {_names(getattr(m, r))}, so nothing was started. Write method.{room}={other.name} for "
                f"{other.name}'s {', '.join(rooms)} in place of {m.name}'s, or take it into a method with a plain {r}."
            )
        else:
            changes[r] = theirs
    roles = {k: v for k, v in other.cast.items() if k not in m.cast}
    return m.but(**changes, **({"cast": roles} if roles else {}))


def _names(held: Any) -> str:
    """What stands in a room, in words."""
    several = held.values() if isinstance(held, Mapping) else held if isinstance(held, tuple) else (held,)
    return ", ".join(map(kind, several)) or "nothing"


def _occupant(whole: str, room: str, value: Any) -> Any:
    """By its snake-case kind, or `./file.py:Class`."""
    name = str(value)
    known = occupants(room)
    if ":" in name:
        found = load_object(name)
        found = found() if isinstance(found, type) else found
        if isinstance(found, Method):
            raise ValueError(
                f"{whole}={name}: that is a whole method, and {room} is one room of it. Write {whole}={name}.{room}."
            )
        if not isinstance(found, Occupant):
            raise ValueError(
                f"{whole}={name}: that is no occupant. Derive a frozen dataclass from gruppo.stages.Occupant."
            )
        return found
    if name not in known:
        near = nearest(name, [*known, *all_methods()])
        raise ValueError(
            f"{whole}={name}: room {room} knows no such occupant and no method has that name{near}. "
            f"Occupants: {', '.join(sorted(known))}; or ./file.py:Class."
        )
    return known[name]()


def occupants(room: str) -> dict[str, type]:
    """{kind: class} of the shared occupants of a room, and of those that methods put there."""
    out = {kind(o): type(o) for m in all_methods().values() for r, o in m.occupants() if r == room}
    for cls in subclasses(Occupant):
        if cls.__module__ == f"gruppo.stages.{room}":
            out[kind(cls)] = cls
    return out
