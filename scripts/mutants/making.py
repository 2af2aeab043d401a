"""Mutants: one small mistake each, made by mutmut's operators on the syntax tree of one file.

Taken from mutmut: arithmetic, comparison and logic swapped, numbers plus one, True for False, `not` and `~` removed,
an argument left out, an `if … else` forced to one side, a lambda that returns None, += as =. Left out, because a mutant
that cannot live says nothing of the tests and only lifts the figure: strings (messages and names), annotations,
imports, `raise` statements, and None for an assigned value or an argument (the next line raises); and the `witness` of
a field, which holds values for the laws to try, so it is a test's and not the method's. mutmut itself leaves
out decorated functions, class bodies and module level, for the sake of its own way to run: here they are in, since the
records of the methods and the defaults of the occupants stand there.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import CodeType
from typing import Any

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "gruppo"
PARTS = ("pieces", "methods", "data", "stages")
LEFT_OUT = {"operator_string", "operator_assignment", "operator_dict_arguments"}
SKIPPED = (cst.Annotation, cst.Raise, cst.Import, cst.ImportFrom, cst.Decorator, cst.Assert, cst.BaseString)
NEVER_CALLED = {"isinstance", "cast", "TypeVar"}  # as in mutmut: to mutate their arguments only raises


@dataclass(frozen=True)
class Mutant:
    name: str  # file, line, operator and a hash of the mutated line: the same as long as the line is
    file: str  # from the package on: pieces/ratio.py
    line: int
    last: int
    operator: str
    before: str
    after: str
    source: str
    live: bool  # in the body of a function: may be put into a running process


def files(parts: list[str]) -> list[Path]:
    """The files of the parts: a folder (`pieces`), a file (`data/segment.py`) or a method's name (`grpo`)."""
    out: list[Path] = []
    for part in parts:
        here = PACKAGE / part
        method = PACKAGE / "methods" / f"{part}.py"
        if here.is_dir():
            out += sorted(here.rglob("*.py"))
        elif here.is_file() or method.is_file():
            out.append(here if here.is_file() else method)
        else:
            raise ValueError(f"{part!r} is no folder and no file of src/gruppo. Use {', '.join(PARTS)}, or a file.")
    return out


def mutants(path: Path) -> list[Mutant]:
    """Every mutant of a file that compiles to something else than the file, in the order of its lines."""
    text = path.read_text(encoding="utf-8")
    module = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    walk = _Walk()
    module.visit(walk)
    plain, seen, out = _shape(compile(text, str(path), "exec")), set[Any](), list[Mutant]()
    begin = [0, *accumulate(len(row) for row in text.splitlines(keepends=True))]
    for old, new, operator, place, live in walk.found:
        line, last = place.start.line, place.end.line
        a, b = begin[line - 1] + place.start.column, begin[last - 1] + place.end.column
        source = text[:a] + module.module.code_for_node(_bare(new)) + text[b:]  # a new tree takes 100 times as long
        try:
            shape = _shape(compile(source, str(path), "exec"))
        except SyntaxError:
            continue
        if shape == plain or shape in seen:
            continue
        seen.add(shape)
        before, after = _code(module.module, old), _code(module.module, new)
        file = path.relative_to(PACKAGE).as_posix()
        here = f"{place.start.column}\0{before}\0{after}\0{text.splitlines()[line - 1].strip()}"
        mark = hashlib.sha256(here.encode()).hexdigest()[:8]
        name = f"{file}:{line}:{operator.removeprefix('operator_')}:{mark}"
        out.append(Mutant(name, file, line, last, operator, before, after, source, live))
    return out


def _bare(node: Any) -> Any:
    """Without its own parentheses: these stand outside of the place that is replaced."""
    return node.with_changes(lpar=[], rpar=[]) if getattr(node, "lpar", ()) else node


def _code(module: cst.Module, node: cst.CSTNode) -> str:
    return " ".join(module.code_for_node(node).split())


def _shape(code: CodeType) -> Any:
    """What a code object does, without line numbers: two mutants of one shape are one."""
    inner = tuple(_shape(c) if isinstance(c, CodeType) else (type(c), repr(c)) for c in code.co_consts)
    return code.co_name, code.co_code, code.co_names, code.co_varnames, code.co_freevars, inner


class _Walk(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[cst.CSTNode, cst.CSTNode, str, CodeRange, bool]] = []
        self.functions = 0

    def on_visit(self, node: cst.CSTNode) -> bool:
        called = node.func.value if isinstance(node, cst.Call) and isinstance(node.func, cst.Name) else ""
        if isinstance(node, SKIPPED) or called in NEVER_CALLED or _witness(node):
            return False
        for operator, new in _mutations(node):
            place = self.get_metadata(PositionProvider, node)
            self.found.append((node, new, operator, place, self.functions > 0))
        if isinstance(node, cst.FunctionDef):
            for parameter in node.params.children:  # defaults are made where the function is, not when it runs
                parameter.visit(self)
            self.functions += 1
            node.body.visit(self)
            self.functions -= 1
            return False
        return True


def _witness(node: cst.CSTNode) -> bool:
    """The argument `witness=` of a field: values for the laws to try."""
    return isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "witness"


def _mutations(node: cst.CSTNode) -> Iterator[tuple[str, cst.CSTNode]]:
    for kind, operator in mutators.mutation_operators:
        if isinstance(node, kind) and operator.__name__ not in LEFT_OUT:
            for new in operator(node):
                if operator is mutators.operator_arg_removal and not _removes(node, new):
                    continue
                yield operator.__name__, new


def _removes(node: Any, new: Any) -> bool:
    """Whether an argument was left out, rather than made None, and one that is not a test's."""
    return len(new.args) < len(node.args) and sum(map(_witness, new.args)) == sum(map(_witness, node.args))
