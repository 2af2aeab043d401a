"""Python files of the user, read and not run: what a file imports from its own folder, what a class says of itself."""

import ast
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path


def imported_beside(file: Path) -> dict[str, Path]:
    """{name: file} of the Python files in its folder, and below, that it imports, directly or through another one."""
    found, ahead = dict[str, Path](), [file]
    while ahead:
        for name in _imports(_parsed(ahead.pop())):
            path = file.parent.joinpath(*name.split("."))
            for source in (path.with_suffix(".py"), path / "__init__.py"):
                at = source.relative_to(file.parent).as_posix()
                if at not in found and source != file and source.is_file() and not _installed(name.partition(".")[0]):
                    found[at] = source
                    ahead.append(source)
    return found


def mistaken(file: Path) -> str:
    """Why a file would get another module than the one beside it under the same name; empty if it would not.

    A module of the same content is as good: the copy of a file in a run folder, and the file itself.
    """
    for at, beside in imported_beside(file).items():
        name = at.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
        other = _loaded(name)
        if other is not None and other != beside.resolve() and not _same(other, beside):
            return (
                f"it imports {name}, which is {beside} beside it, but under this name Python has {other}, and would "
                "use that one. Rename one of the two files; if the other one is no longer used, start a new process."
            )
    return ""


def _loaded(name: str) -> Path | None:
    """The file of a module that was imported, or would be."""
    if name in sys.modules:
        found = getattr(sys.modules[name], "__file__", None)
    else:
        spec = None if "." in name else PathFinder.find_spec(name)
        found = None if spec is None else spec.origin
    return None if found is None else Path(found).resolve()


def _same(a: Path, b: Path) -> bool:
    return a.is_file() and a.read_bytes() == b.read_bytes()


def class_constants(file: Path, name: str, attribute: str) -> tuple[str, ...]:
    """The texts in `attribute = ("a", "b")` of a class."""
    found = (c.body for c in _parsed(file).body if isinstance(c, ast.ClassDef) and c.name == name)
    for line in (line for body in found for line in body if isinstance(line, ast.Assign)):
        if [ast.unparse(t) for t in line.targets] == [attribute]:
            return tuple(str(leaf.value) for leaf in ast.walk(line.value) if isinstance(leaf, ast.Constant))
    return ()


def _parsed(file: Path) -> ast.Module:
    """Its code; nothing if it is none, which is refused when it is loaded."""
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _imports(code: ast.Module) -> Iterator[str]:
    for line in ast.walk(code):
        if isinstance(line, ast.Import):
            yield from (a.name for a in line.names)
        elif isinstance(line, ast.ImportFrom) and line.module:
            yield line.module
            yield from (f"{line.module}.{a.name}" for a in line.names)


def _installed(name: str) -> bool:
    """Whether Python finds this elsewhere first: the folder of a user's file is the last one that it looks into."""
    packages = [p for p in sys.path if p.endswith("-packages")]
    return name == "gruppo" or name in sys.stdlib_module_names or PathFinder.find_spec(name, packages) is not None
