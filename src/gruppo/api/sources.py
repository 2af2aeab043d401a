"""The source of functions and classes that live in no file, such as those of a notebook, as a file of its own.

What they use comes with them: imports, other functions and classes of the notebook, and plain values (numbers, texts,
lists, dicts, patterns) as they are at this moment. Anything else is refused, and so is code whose source has changed.
"""

import ast
import builtins
import inspect
import linecache
import re
import symtable
import sys
from collections.abc import Iterator, Sequence
from textwrap import dedent
from types import CodeType, FunctionType, ModuleType
from typing import Any

from gruppo.api.remade import missing, run

LONGEST = 100_000  # characters of a value
FILE = "in a file and name it: './file.py:NAME'."
REMEDY = f"Put it {FILE}"


def nowhere(found: Any) -> bool:
    """Whether another process cannot import a function or class: it is of a notebook, a script or another function."""
    module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", "")
    here: Any = sys.modules.get(module) if module and module != "__main__" else None
    for part in name.split("."):
        here = getattr(here, part, None)
    return here is not found


def source_of(found: Sequence[Any]) -> str:
    """A file that has these functions and classes, and everything that they use."""
    text = Text()
    for one in found:
        text.add(one.__name__, one, one.__name__)
    text.add_attributes()
    return text.whole()


class Text:
    """A file in the making: imports, then values, functions and classes, each after what it uses."""

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.body: dict[str, str] = {}
        self.known: dict[str, Any] = {}
        self.defined: dict[str, Any] = {}  # the functions and classes in it

    def whole(self) -> str:
        imports = sorted(self.imports.values())
        body = (f"\n\n{part}" for part in self.body.values())
        return "\n".join(['"""Passed from Python."""', "", *imports, *body, ""])

    def add_attributes(self) -> None:
        """Plain attributes that were set after a definition, after it; then the file makes what it was made from."""
        for _ in range(2):  # the second time nothing is left to add
            made, more = run(self.whole(), ", ".join(self.defined), REMEDY), False
            for name, value in self.defined.items():
                for key, found in missing(name, value, made[name]).items():
                    if not _is_plain(found):
                        raise ValueError(
                            f"{name}.{key} is too long, or holds objects, so it cannot be written. {REMEDY}"
                        )
                    self.body[name] += f"\n{name}.{key} = {found!r}"
                    more = True
            if not more:
                return
        raise ValueError(f"{', '.join(self.defined)} cannot be made again as they are. {REMEDY}")

    def add(self, name: str, value: Any, user: str) -> None:
        """What `user` calls `name`."""
        if name in self.known:
            if self.known[name] is not value:
                raise ValueError(f"{user} and another part of it mean two things by {name}. Rename one of them.")
            return
        self.known[name] = value
        if line := _import(name, value):
            self.imports[name] = line
        elif isinstance(value, re.Pattern):
            self.add("re", re, user)
            self.body[name] = f"{name} = re.compile({value.pattern!r}, {value.flags})"
        elif _is_plain(value):
            self.body[name] = f"{name} = {value!r}"
        elif isinstance(inspect.unwrap(value) if callable(value) else value, FunctionType | type):
            self._add_source(name, value)
        else:
            raise ValueError(
                f"{user} uses {name}, a {type(value).__name__}, which cannot be written to a file, and other processes "
                f"could not have it. Make it inside of {user}, or put {user} {FILE}"
            )

    def _add_source(self, name: str, value: Any) -> None:
        own = value.__name__
        if own == "<lambda>":
            raise ValueError(f"{name} is a lambda, whose source cannot be told from the line around it. Write a def.")
        if self.known.setdefault(own, value) is not value:
            raise ValueError(f"{name} and another part of it were both defined as {own}. Rename one of them.")
        text, functions = _source(value)
        names = functions[0].__globals__
        for used in _used(text, own):
            if used == own:
                if names.get(own, value) is not value:
                    raise ValueError(f"{own} uses {own}, which is another one by now. Rename one of them.")
            elif used in names:
                self.add(used, names[used], own)
            elif not hasattr(builtins, used):
                raise ValueError(f"{own} uses {used}, which is not defined, so it would fail. Define it first.")
        self.body[own], self.defined[own] = text, value
        if own != name:
            self.body[name] = f"{name} = {own}"


def _import(name: str, value: Any) -> str:
    """The line that imports a module, or what a module has; "" for what no module has."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__}" + (f" as {name}" if value.__name__ != name else "")
    module = getattr(value, "__module__", None)
    if not isinstance(module, str) or module == "__main__":
        return ""
    for own in (getattr(value, "__qualname__", ""), getattr(value, "__name__", ""), name):
        if isinstance(own, str) and own.isidentifier() and getattr(sys.modules.get(module), own, None) is value:
            return f"from {module} import {own}" + (f" as {name}" if own != name else "")
    return ""


def _is_plain(value: Any) -> bool:
    """Whether its text is the value again."""
    if not isinstance(value, str | bytes | bool | int | float | complex | list | tuple | dict | set | None):
        return False
    try:
        text = repr(value)
        return len(text) <= LONGEST and ast.literal_eval(text) == value
    except (ValueError, SyntaxError, RecursionError):
        return False


def _source(value: Any) -> tuple[str, list[FunctionType]]:
    """The text of a function or class as it was defined, and its functions."""
    functions = list(_functions(value))
    name = value.__name__
    if not functions:
        raise ValueError(
            f"{name} is a class without functions of its own, and Python keeps the source of functions only, so it "
            f"cannot be written to a file. Give it a function, or put it {FILE}"
        )
    _refuse_closures(name, functions)
    for f in functions:
        cell = "".join(linecache.getlines(f.__code__.co_filename))
        text = _segment(cell, f.__code__.co_firstlineno, name)
        # A file is compiled as a whole, and a notebook compiles each statement of a cell alone, which differs a bit.
        if text and any(all(_same(g.__code__, part) for g in functions) for part in (cell, text)):
            return text, functions
    raise ValueError(
        f"the source of {name} cannot be found, or has changed since it was run, so other processes could not have it. "
        f"Run its definition again, or put it {FILE}"
    )


def _functions(value: Any) -> Iterator[FunctionType]:
    """Those that somebody wrote: a dataclass makes others."""
    if not isinstance(value, type):
        yield inspect.unwrap(value)
        return
    for member in vars(value).values():
        member = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
        member = inspect.unwrap(member) if callable(member) else member
        if not isinstance(member, FunctionType) or member.__module__ != value.__module__:  # an Enum has some of enum
            continue
        if member.__code__.co_filename != "<string>":
            yield member


def _segment(cell: str, line: int, name: str) -> str:
    """The definition of that name around a line of a file or cell."""
    try:
        tree = ast.parse(cell)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first <= line <= (node.end_lineno or first):
                return dedent("\n".join(cell.split("\n")[first - 1 : node.end_lineno])).rstrip()
    return ""


def _codes(code: CodeType) -> Iterator[CodeType]:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield part
            yield from _codes(part)


def _same(code: CodeType, cell: str) -> bool:
    """Whether a file or cell still says what was run: it may have been edited meanwhile."""
    now = compile(cell, "", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return any(_shape(code) == _shape(other) for other in _codes(now) if other.co_name == code.co_name)


def _shape(code: CodeType) -> tuple[Any, ...]:
    values = tuple(_shape(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, values


def _refuse_closures(name: str, functions: Sequence[FunctionType]) -> None:
    for f in functions:
        free = [v for v in f.__code__.co_freevars if v != "__class__"]
        if free:
            raise ValueError(
                f"{name} uses {', '.join(free)} of the function around it, which other processes cannot have. Make it "
                f"an argument, and set it with task.args (of a reward) or as a field (of an occupant)."
            )


def _used(text: str, name: str) -> list[str]:
    """The global names that a definition reads."""
    found: dict[str, None] = {}
    tables = [symtable.symtable(text, name, "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        outer = table.get_type() == "module"
        for s in table.get_symbols():
            if s.is_referenced() and (not s.is_assigned() if outer else s.is_global()):
                found[s.get_name()] = None
    return list(found)
