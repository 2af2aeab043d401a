"""One file a method; `ls` is the catalogue. This file only finds them."""

import re
import sys
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from gruppo.stages.method import Method, difference
from gruppo.stages.names import nearest
from gruppo.tasks.imports import load_object

ENTRY_POINTS = "gruppo.methods"


def described(method: Method, module: ModuleType | None) -> Method:
    """The method with the docstring of its file, unless it brings its own."""
    doc = method.doc or (module.__doc__ if module is not None else "") or ""
    return method.but(doc=doc.strip())


@lru_cache
def built_in() -> dict[str, Method]:
    """{name: method} of this folder."""
    out: dict[str, Method] = {}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        module = import_module(f"{__name__}.{path.stem}")
        mine = [x for x in vars(module).values() if isinstance(x, Method) and x.name == path.stem]
        if len(mine) != 1:
            raise ValueError(
                f"methods/{path.name} holds {len(mine)} methods called {path.stem!r}: one file, one method."
            )
        out[path.stem] = described(mine[0], module)
    return out


@lru_cache
def plugged_in() -> dict[str, Method]:
    """{name: method} of installed packages that offer the entry point `gruppo.methods`."""
    found = {}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            method = entry.load()
        except Exception as error:
            raise ValueError(
                f"entry point {entry.name!r} ({entry.value}) cannot be loaded: {error!r}. Fix or uninstall its package."
            ) from error
        if not isinstance(method, Method):
            raise ValueError(f"entry point {entry.name!r} gives {method!r}, which is no Method. Point it to a Method.")
        if method.name in built_in() or method.name in found:
            raise ValueError(
                f"entry point {entry.name!r} ({entry.value}) brings a second method called "
                f"{method.name!r}: one would hide "
                "the other. Rename it, or uninstall its package."
            )
        found[method.name] = described(method, import_module(entry.module))
    return found


def all_methods() -> dict[str, Method]:
    return {**built_in(), **plugged_in()}


def method(name: str) -> Method:
    """By name (`grpo`, `grpo@1`) or by file (`./mine.py:MINE`)."""
    if ":" in name:
        found = load_object(name)
        if not isinstance(found, Method):
            raise ValueError(
                f"{name} is {type(found).__name__}, no Method, so there is nothing to train. Name a "
                "Method in that file."
            )
        where = name.rpartition(":")[0]
        return found.but(doc=(found.doc or load_object(f"{where}:__doc__") or "").strip())
    if name.endswith(".py") and Path(name).is_file():
        here = [
            k
            for k, v in vars(sys.modules[load_object(f"{name}:__name__")]).items()
            if isinstance(v, Method) and v.name not in built_in()
        ]
        has = f"It has: {', '.join(here)}." if here else "It has none."
        raise ValueError(f"method={name} names a file and no method in it. {has} Write method={name}:NAME.")
    bare, _, version = name.partition("@")
    known = all_methods()
    if bare not in known:
        raise ValueError(
            f"method={name!r} is not known{nearest(bare, known)}. See `gruppo methods`, or give a "
            "file: method=./mine.py:MINE."
        )
    if version and version != str(known[bare].version):
        raise ValueError(
            f"method={name!r}: this gruppo has {bare}@{known[bare].version}. Its numbers differ; name that one."
        )
    return known[bare]


def refurnished(m: Method) -> list[str]:
    """Lines that say what was changed in a method that still has its name, with what came along with a room."""
    known = all_methods().get(m.name)
    changes = difference(known, m) if known else []
    return [f"{m.name}, with these changes:", *(f"  {c}" for c in changes)] if changes else []


def summary(doc: str) -> str:
    """The first line of a docstring."""
    return re.split(r"\n", doc.strip(), maxsplit=1)[0]
