"""`key=value` settings on the tree of a run: paths are resolved here, values in gruppo.cli.values.

tyro, jsonargparse, pydantic-settings and omegaconf were tried (docs/design/configuration.md): none takes a room from a
named method or edits a chain by name.
"""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import reduce
from typing import Any, NamedTuple

from gruppo.cli.elsewhere import called_otherwise
from gruppo.cli.values import coerce, plain_value
from gruppo.fields import hints_of, outside
from gruppo.methods import all_methods, method
from gruppo.stages import CHAINS, ROOMS, ByUpdate, Ema, Every, Method, Never, Occupant, Role, Schedule, kind
from gruppo.stages.check import subclasses
from gruppo.stages.method import added
from gruppo.stages.names import nearest
from gruppo.stages.record import from_table
from gruppo.tasks.imports import load_object
from gruppo.train.config import ModelConfig, RunConfig, usual

REFRESH = {kind(c): c for c in (Never, Every, Ema, ByUpdate)}
PLAIN = {f.name: f.default for f in dataclasses.fields(Method) if f.name in ROOMS}


class Setting(NamedTuple):
    path: str
    op: str  # =, += or -=
    value: Any

    def __str__(self) -> str:
        return f"{self.path}{self.op}{self.value}"


def apply(config: RunConfig, tokens: Sequence[str], said: Collection[str] = ()) -> RunConfig:
    """The run with these settings, shorter paths first: `method=` comes before `method.credit.eps=`.

    `said` are the settings that a run file has made already.
    """
    return apply_settings(config, [parsed(t) for t in tokens], said)


def parsed(token: str) -> Setting:
    m = re.fullmatch(r"([\w.]+)(\+=|-=|=)(.*)", token, re.S)
    if not m:
        file = f" For a run file: --config {token}." if token.endswith(".toml") else ""
        raise ValueError(
            f"{token!r} is not a setting, so nothing was started. Write key=value, or for a chain key+=name, "
            f"key-=name.{file}"
        )
    return Setting(m[1], m[2], m[3])


def apply_settings(config: RunConfig, settings: Sequence[Setting], said: Collection[str] = ()) -> RunConfig:
    for s in sorted(settings, key=lambda s: s.path.count(".")):
        config = _put(config, s.path.split("."), s)
    named = {path.removesuffix(".name") for path in (*said, *(s.path for s in settings))}
    if any(s.path in ("task", "task.name") for s in settings) and "model" not in named:
        return _as_usual(config, named)
    return config


def _as_usual(config: RunConfig, named: Collection[str]) -> RunConfig:
    """With the usual settings of its world, where neither a setting nor a given configuration says another value."""
    if config.model.name != ModelConfig.name:
        return config
    for path, value in usual(config.task.name).items():
        if path not in named and value_at(path, config) == value_at(path, RunConfig()):
            config = _put(config, path.split("."), Setting(path, "=", value))
    return config


def value_at(path: str, config: RunConfig) -> Any:
    return reduce(getattr, path.split("."), config)


def said_in(table: Mapping[str, Any]) -> set[str]:
    """The settings that a run file makes. A resolved one has all values, also those that nobody chose."""
    return set() if "kind" in table else {s.path for s in _settings(table)}


def from_toml(table: Mapping[str, Any], config: RunConfig) -> RunConfig:
    """A run file: the whole resolved tree, or the settings that differ from the defaults."""
    if "kind" not in table:
        return apply_settings(config, list(_settings(table)))
    config = from_table(table)
    verify(config)
    return config


def verify(node: Any, at: str = "") -> None:
    """Refuses a value of the wrong type: a resolved run file may have been edited by hand."""
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
                coerce(value, hints_of(type(node))[f.name], at + f.name, f.metadata, strict=True)
            verify(value, f"{at}{f.name}.")


def _settings(table: Mapping[str, Any], at: str = "") -> Iterator[Setting]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _settings(value, f"{at}{key}.")
        else:
            path = f"{at}{key}"
            yield Setting("method" if path == "method.name" else path, "=", value)


def _put(node: Any, path: list[str], s: Setting) -> Any:
    """The node with the setting applied at `path` inside it."""
    path = _found_by_kind(node, path, s) if isinstance(node, Method) else path
    key, rest = path[0], path[1:]
    if isinstance(node, tuple):
        return _put_in_chain(node, key, rest, s)
    if isinstance(node, Mapping):
        if s.path.startswith("method.writers."):
            new = _writer(rest, s)
        elif rest:
            new = _put(node[_known(key, node, s.path)], rest, s)
        elif s.path.startswith("method.cast."):
            new = Role(start=str(s.value))
        else:  # method.objective.critic=value_loss
            new = _changed_chain(node.get(key, ()), "objective", s)
        return {**node, key: new}
    names = [f.name for f in dataclasses.fields(node)] if dataclasses.is_dataclass(node) else []
    if key not in names:
        raise ValueError(_unknown(key, names, s.path, node))
    before = getattr(node, key)
    if isinstance(before, Mapping) and not isinstance(node, Method):
        after = _put_in_table(before, rest, s)
    elif rest:
        after = _put(before, rest, s)
    elif isinstance(node, Method) and key in ROOMS:
        return _refurnish(node, key, s)
    else:
        after = _leaf(node, key, s)
    return dataclasses.replace(node, **{key: after})  # type: ignore[type-var]


def _writer(rest: list[str], s: Setting) -> str:
    """method.writers.AGENT=ROLE."""
    if rest or s.op != "=" or not isinstance(s.value, str):
        raise ValueError(
            f"{s}: that is no role for an agent, so nothing was started. Write method.writers.AGENT=ROLE, with a word "
            "for the role, such as method.writers.verifier=verifier."
        )
    return s.value


def _found_by_kind(m: Method, path: list[str], s: Setting) -> list[str]:
    """The path with the chain that has this kind of occupant, if the chain in the path does not.

    Occupants move: heated_likelihood used to be a penalty, and committed claims still address it there.
    """
    room, *rest = path
    if room not in CHAINS or len(rest) < 2:
        return path
    chains = {(r,): getattr(m, r) for r in CHAINS if not isinstance(getattr(m, r), Mapping)}
    if isinstance(m.objective, Mapping):
        chains |= {("objective", role): chain for role, chain in m.objective.items()}
    found = [at for at, chain in chains.items() if rest[0] in map(kind, chain)]
    if not found or (room,) in found:
        return path
    if len(found) > 1:
        raise ValueError(
            f"{s.path}: there is {rest[0]} in {' and in '.join('.'.join(at) for at in found)}, so nothing was started. "
            "Name the one you mean."
        )
    return [*found[0], *rest]


def _put_in_table(table: Mapping[str, Any], path: list[str], s: Setting) -> dict[str, Any]:
    """A table of plain values with arbitrary names: task.args.tolerance=0.01."""
    if not path or s.op != "=" or path[0] == "kind":
        raise ValueError(
            f"{s}: {s.path} is a table of values, so nothing was started. Set one of them: "
            f"{s.path if not path else s.path.rpartition('.')[0]}.NAME=VALUE, with any NAME but kind."
        )
    key, rest = path[0], path[1:]
    inner = table.get(key, {})
    if rest:
        return {**table, key: _put_in_table(inner if isinstance(inner, Mapping) else {}, rest, s)}
    return {**table, key: plain_value(s.value) if isinstance(s.value, str) else s.value}


def _put_in_chain(chain: tuple[Any, ...], key: str, rest: list[str], s: Setting) -> tuple[Any, ...]:
    here = {kind(o): i for i, o in enumerate(chain)}
    owner = {f.name: kind(o) for o in reversed(chain) for f in dataclasses.fields(o)}  # the first that has the field
    if key not in here and not rest:  # method.objective.clip_high=0.3
        _known(key, here, s.path, also=owner)
        key, rest = owner[key], [key]
    index = here[_known(key, here, s.path)]
    if not rest:
        raise ValueError(f"{s}: {key} is an occupant, so its field is missing. Write {s.path}.FIELD=VALUE.")
    return (*chain[:index], _put(chain[index], rest, s), *chain[index + 1 :])


def _known(key: str, known: Mapping[str, Any], path: str, also: Sequence[str] | Mapping[str, Any] = ()) -> str:
    """The key, if it is one of `known` or `also`; the message lists `known`."""
    if key not in known and key not in also:
        near = called_otherwise(key) or nearest(key, [*known, *also])
        raise ValueError(f"{path}: there is no {key!r} here{near}. There is: {', '.join(known) or 'nothing'}.")
    return key


def _unknown(key: str, names: list[str], at: str, node: Any) -> str:
    deep: dict[str, str] = {}  # the last part of a path -> the shortest such path
    for path in sorted(paths(RunConfig()), key=lambda p: p.count(".")):
        deep.setdefault(path.rpartition(".")[2], path)
    slip = not isinstance(node, RunConfig) and get_close_matches(key, names, n=1, cutoff=0.8)  # eval.prompt
    beside = nearest(key, names) if slip or key not in deep else ""
    close = [] if beside else [key] if key in deep else get_close_matches(key, deep, n=1, cutoff=0.7)
    hint = f" (did you mean {deep[close[0]]}?)" if close else beside
    if mine := [name for name in names if key in name.split("_")] if not isinstance(node, RunConfig) else []:
        above = at.rpartition(".")[0]  # save.every is save.checkpoint_every
        hint = f" (nearest: {', '.join(f'{above}.{name}' for name in mine)})"
    hint = called_otherwise(key, isinstance(node, RunConfig)) or hint
    what = "a run" if isinstance(node, RunConfig) else type(node).__name__
    return f"{at}: {what} has no {key!r}{hint}, so nothing was started. It has: {', '.join(names) or 'no fields'}."


def paths(node: Any, at: str = "") -> Iterator[str]:
    """All paths that can be set."""
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


def _leaf(node: Any, key: str, s: Setting) -> Any:
    if s.op != "=":
        raise ValueError(f"{s}: {s.path} is no chain. Write {s.path}=VALUE; chains are {', '.join(CHAINS)}.")
    before = getattr(node, key)
    if s.path == "method.cast":
        raise ValueError(
            f"{s}: the cast is one model for each role, so nothing was started. Set a role: "
            f"method.cast.ROLE=FOLDER, where ROLE is one of {', '.join(before)}."
        )
    if s.path == "method.writers":
        raise ValueError(
            f"{s}: the writers are one role for each agent, so nothing was started. Set one: method.writers.AGENT=ROLE,"
            " such as method.writers.verifier=verifier in task=verify."
        )
    if isinstance(before, Method):
        return method(str(s.value))
    if isinstance(before, tuple(REFRESH.values())):
        return REFRESH[_known(str(s.value), REFRESH, s.path)]()
    if dataclasses.is_dataclass(before) and not isinstance(before, Schedule):
        if "name" in [f.name for f in dataclasses.fields(before)]:
            return _put(before, ["name"], s._replace(path=f"{s.path}.name"))
        raise ValueError(
            f"{s}: it has fields of its own. Set one of them, for example {next(paths(before, s.path + '.'))}."
        )
    field, hint = next(f for f in dataclasses.fields(node) if f.name == key), hints_of(type(node))[key]
    value = coerce(s.value, hint, s.path, field.metadata)
    if said := outside(str(s), value, field, hint):
        raise ValueError(said)
    return value


# rooms


def _refurnish(m: Method, room: str, s: Setting) -> Method:
    if s.op != "=" and room not in CHAINS:
        raise ValueError(
            f"{s}: {room} holds one occupant, no chain. Write {s.path}={s.value}; chains are {', '.join(CHAINS)}."
        )
    if s.op != "-=" and str(s.value) in all_methods():
        return _taken(m, room, s.op, all_methods()[str(s.value)])
    if room in CHAINS:
        return dataclasses.replace(m, **{room: _changed_chain(getattr(m, room), room, s)})
    return dataclasses.replace(m, **{room: _occupant(s, room)})


def _changed_chain(held: Any, room: str, s: Setting) -> Any:
    """A chain, or {role: chain}, with an occupant added (+=) or removed (-=), or replaced by one occupant or none."""
    if s.op == "-=":
        chains = _by_role(held)
        _known(str(s.value), {kind(o): o for chain in chains.values() for o in chain}, s.path)
        left = {role: tuple(o for o in chain if kind(o) != s.value) for role, chain in chains.items()}
        return left if isinstance(held, Mapping) else left["policy"]
    if str(s.value) in ("", "none"):
        return ()
    new = (_occupant(s, room),)
    return _joined(held, new) if s.op == "+=" else new


def _by_role(held: Any) -> Mapping[str, tuple[Any, ...]]:
    return held if isinstance(held, Mapping) else {"policy": held}


def _joined(held: Any, new: Any) -> Any:
    """Two chains in one; of objectives for several roles, role by role."""
    if not isinstance(held, Mapping) and not isinstance(new, Mapping):
        return reduce(added, new, held)
    mine, theirs = _by_role(held), _by_role(new)
    return {role: reduce(added, theirs.get(role, ()), mine.get(role, ())) for role in {**mine, **theirs}}


def _taken(m: Method, room: str, op: str, other: Method) -> Method:
    """The room of another method, with the roles it needs and the rooms that it only makes sense together with.

    `+=` extends chains. A room of one occupant that comes along may only replace the plain default.
    """
    rooms = other.together if room in other.together else (room,)
    if op == "+=" and not getattr(other, room):
        furnished = [r for r in ROOMS if r in CHAINS and getattr(other, r)]
        raise ValueError(
            f"method.{room}+={other.name}: {other.name} has nothing in {room}, so nothing would change and nothing was "
            f"started. Its chains are in {', '.join(furnished)}: method.{furnished[-1]}+={other.name}."
        )
    changes: dict[str, Any] = {}
    for r in rooms:
        theirs = getattr(other, r)
        if op == "+=" and r in CHAINS:
            changes[r] = _joined(getattr(m, r), theirs)
        elif op == "+=" and getattr(m, r) not in (theirs, PLAIN.get(r)):
            raise ValueError(
                f"method.{room}+={other.name}: it comes with {kind(theirs)} in {r}, which would replace {m.name}'s "
                f"{kind(getattr(m, r))}, so nothing was started. Write method.{room}={other.name} to replace "
                f"{', '.join(rooms)}, or add it to a method with the default {r}."
            )
        else:
            changes[r] = theirs
    roles = {k: v for k, v in other.cast.items() if k not in m.cast}
    return m.but(**changes, **({"cast": roles} if roles else {}))


def _occupant(s: Setting, room: str) -> Any:
    """An occupant by its kind in snake case, or by `./file.py:Class`."""
    name = str(s.value)
    known = occupants(room)
    if ":" in name:
        found = load_object(name)
        found = found() if isinstance(found, type) else found
        if isinstance(found, Method):
            raise ValueError(f"{s}: that is a whole method, and {room} is one room of it. Write {s}.{room}.")
        if not isinstance(found, Occupant):
            raise ValueError(f"{s}: that is no occupant. Derive a frozen dataclass from gruppo.stages.Occupant.")
        return found
    if name not in known:
        near = nearest(name, [*known, *all_methods()])
        raise ValueError(
            f"{s}: {room} has no occupant, and there is no method, of that name{near}. "
            f"Occupants: {', '.join(sorted(known))}; or ./file.py:Class."
        )
    return known[name]()


def occupants(room: str) -> dict[str, type]:
    """{kind: class} of the shared occupants of a room, and of those in the methods."""
    out = {kind(o): type(o) for m in all_methods().values() for r, o in m.occupants() if r == room}
    for cls in subclasses(Occupant):
        if cls.__module__ == f"gruppo.stages.{room}":
            out[kind(cls)] = cls
    return out
