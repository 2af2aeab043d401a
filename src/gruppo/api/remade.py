"""Whether a file that was written from functions and classes makes the same ones when it is run.

A function is more than its definition: it may have been wrapped, been given attributes, or keep a default that was
computed from a value that has changed since. Plain attributes can be written after the definition; the rest is refused.
"""

import dis
import inspect
import linecache
import re
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from types import CodeType, FunctionType, ModuleType
from typing import Any

NAME = "gruppo_from_python"
AGAIN = "Run its definition again, or change the definition itself"
OPERATORS = ("BINARY", "COMPARE", "CONTAINS", "IS_", "UNARY")
PLAIN = (str, bytes, bool, int, float, complex, list, tuple, dict, set, frozenset, type(None), re.Pattern)


def run(text: str, name: str, remedy: str) -> dict[str, Any]:
    """The names that a file defines, in a module of its own."""
    module, file = ModuleType(NAME), f"<{NAME}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    before, sys.modules[NAME] = sys.modules.get(NAME), module
    try:
        exec(compile(text, file, "exec", dont_inherit=True), vars(module))
    except Exception as error:
        raise ValueError(
            f"{name} was written to a file with what it uses, and that file cannot be run ({type(error).__name__}: "
            f"{error}), so other processes could not have it. {remedy}"
        ) from error
    finally:
        del sys.modules[NAME]
        if before is not None:
            sys.modules[NAME] = before
    return vars(module)


def missing(name: str, now: Any, made: Any) -> dict[str, Any]:
    """The plain attributes that the definition does not give; a ValueError names any other difference."""
    if isinstance(now, type):
        return _of_class(name, now, made)
    chain, again = list(_chain(now)), list(_chain(made))
    if len(chain) < len(again):
        raise ValueError(f"{name} is the function inside of what its definition makes. Define it without a decorator.")
    if len(chain) > len(again):
        raise ValueError(
            f"{name} was wrapped by another function after its definition, and the source is that of the inner one, so "
            "other processes would have another function. Wrap it where it is defined, with a decorator above the "
            "def, or write a def that calls both."
        )
    found = _attributes(name, vars(now), vars(made))
    for a, b in zip(chain, again, strict=True):
        _refuse_other(name, a, b)
    for a, b in zip(chain[1:], again[1:], strict=True):
        if inner := _attributes(name, vars(a), vars(b)):
            raise ValueError(
                f"{name}: {', '.join(inner)} of the function inside it was set after its definition. {AGAIN}."
            )
    return found


def _chain(f: Any) -> Iterator[Any]:
    while f is not None:
        yield f
        f = vars(f).get("__wrapped__") if hasattr(f, "__dict__") else None


def _of_class(name: str, now: type, made: Any) -> dict[str, Any]:
    if not isinstance(made, type) or [c.__name__ for c in now.__bases__] != [c.__name__ for c in made.__bases__]:
        raise ValueError(f"{name} was replaced, or given other bases, after its definition. {AGAIN}.")
    mine, theirs = ({k: v for k, v in vars(c).items() if _counts(c, k, v)} for c in (now, made))
    found = _attributes(name, mine, theirs)
    for key in mine.keys() & theirs.keys():
        a, b = _function(mine[key]), _function(theirs[key])
        if a is not None and b is not None and missing(f"{name}.{key}", a, b):
            raise ValueError(f"{name}.{key} was given attributes after its definition. {AGAIN}.")
    if _attributes(name, _members(now), _members(made)):
        raise ValueError(f"{name} has members whose values are others by now. {AGAIN}.")
    return found


def _members(cls: type) -> dict[str, Any]:
    return {k: m.value for k, m in cls.__members__.items()} if issubclass(cls, Enum) else {}


def _counts(cls: type, key: str, value: Any) -> bool:
    """Of the names with two underscores only functions: Python sets the others. Members of an Enum are values."""
    return key not in _members(cls) and (
        not (key.startswith("__") and key.endswith("__")) or _function(value) is not None
    )


def _function(member: Any) -> Any:
    """The function of a method, a property or the like; None of what is none."""
    member = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
    unwrapped = inspect.unwrap(member) if callable(member) else None
    return member if isinstance(unwrapped, FunctionType) else None


def _attributes(name: str, now: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Those that differ and can be written down."""
    found: dict[str, Any] = {}
    for key in dict.fromkeys((*now, *made)):
        if key.startswith("__") and key.endswith("__") and (key in now) == (key in made):
            continue
        if key not in now:
            raise ValueError(f"{name}.{key} was removed after its definition, which would bring it back. {AGAIN}.")
        if key in made and alike(now[key], made[key]):
            continue
        if not isinstance(now[key], PLAIN):
            raise ValueError(
                f"{name}.{key}, a {type(now[key]).__name__}, was set after the definition of {name}, and cannot be "
                f"written down, so other processes would not have it. {AGAIN}."
            )
        found[key] = now[key]
    return found


def _refuse_other(name: str, now: Any, made: Any) -> None:
    """Two functions of the same definition must have the same code, defaults and values around them."""
    if type(now) is not type(made) or (isinstance(now, FunctionType) and _words(now.__code__) != _words(made.__code__)):
        raise ValueError(f"{name} was replaced by another function after its definition. {AGAIN}.")
    if not isinstance(now, FunctionType):
        return
    for (key, a), (_, b) in zip(_given(now), _given(made), strict=True):
        if not alike(a, b):
            raise ValueError(
                f"{name} has {key}={a!r}, and its definition gives {key}={b!r} by now, so other processes would have "
                f"another function. {AGAIN}."
            )


def _given(f: FunctionType) -> list[tuple[str, Any]]:
    """Defaults and the values of the functions around it, with their names."""
    code, defaults = f.__code__, f.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount]
    out = [(k, inspect.Parameter.empty) for k in positional[: len(positional) - len(defaults)]]
    out += zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
    named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    out += [(k, (f.__kwdefaults__ or {}).get(k, inspect.Parameter.empty)) for k in named]
    for key, cell in zip(code.co_freevars, f.__closure__ or (), strict=True):
        try:
            out.append((key, cell.cell_contents))
        except ValueError:  # not set yet
            out.append((key, inspect.Parameter.empty))
    return out


def alike(a: Any, b: Any) -> bool:
    """Whether plain values are the same; of other objects, whether they are of one kind."""
    if isinstance(a, PLAIN) or isinstance(b, PLAIN):
        return type(a) is type(b) and (repr(a) == repr(b) or a == b)
    if isinstance(a, type) and isinstance(b, type):
        return a.__name__ == b.__name__
    if isinstance(a, FunctionType) and isinstance(b, FunctionType):
        return _words(a.__code__) == _words(b.__code__)
    return type(a).__name__ == type(b).__name__


def _words(code: CodeType) -> tuple[Any, ...]:
    """What does not depend on whether a statement was compiled alone or with others."""
    values = tuple(_words(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts)
    steps = tuple((i.opname, i.argrepr) for i in dis.get_instructions(code) if i.opname.startswith(OPERATORS))
    return code.co_name, code.co_names, code.co_varnames, values, steps
