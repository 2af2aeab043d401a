"""Python files of the user, read and not run: what a file imports from its own folder, what a class says of itself."""

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path


def imported_beside(file: Path, root: Path | None = None) -> dict[str, Path]:
    """{name: file} of the user's Python files that it imports, directly or through another one.

    They are looked for in `root`, the folder of the file, or for a module of a package the one that holds the package.
    """
    root = root or file.parent
    found, ahead = dict[str, Path](), [file]
    while ahead:
        source = ahead.pop()
        for path in _imports(_parsed(source), source, root):
            for other in (path.with_suffix(".py"), path / "__init__.py"):
                at = other.relative_to(root).as_posix() if other.is_relative_to(root) else other.name
                if at not in found and other != file and other.is_file():
                    found[at] = other
                    ahead.append(other)
    return found


def imported_names(file: Path, root: Path) -> set[str]:
    """What a file itself imports from `root`, as Python names it; not all of these have to be modules."""
    paths = _imports(_parsed(file), file, root)
    return {".".join(path.relative_to(root).parts) for path in paths if path.is_relative_to(root)}


def named(at: str) -> str:
    """The module in a file, given relative to the folder in which it is found: `package/part.py` is package.part."""
    return at.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")


def mistaken(file: Path) -> str:
    """Why a file would get another module than the one beside it under the same name; empty if it would not.

    A module of the same content is as good: the copy of a file in a run folder, and the file itself.
    """
    for at, beside in imported_beside(file).items():
        name = named(at)
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


def texts(file: Path) -> Iterator[str]:
    """All texts in its code, those of its documentation included."""
    return (x.value for x in ast.walk(_parsed(file)) if isinstance(x, ast.Constant) and isinstance(x.value, str))


def _imports(code: ast.Module, file: Path, root: Path) -> Iterator[Path]:
    """Where the modules that a file imports would lie, without their ending; those that Python finds elsewhere, not."""
    for line in ast.walk(code):
        if isinstance(line, ast.Import):
            for a in line.names:
                yield from _below(root, a.name)
        elif isinstance(line, ast.ImportFrom) and line.level:
            folder = file.parents[line.level - 1] if line.level <= len(file.parents) else file.parent
            yield from _below(folder, line.module or "", [a.name for a in line.names], near=True)
        elif isinstance(line, ast.ImportFrom) and line.module:
            yield from _below(root, line.module, [a.name for a in line.names])
        elif isinstance(line, ast.Call) and (name := _by_call(line)):
            yield from _below(root, name)


def _by_call(line: ast.Call) -> str:
    """The module of `import_module("helper")` or `__import__("helper")`; "" for other calls, and for computed names."""
    called = ast.unparse(line.func).rpartition(".")[2]
    name = line.args[0].value if line.args and isinstance(line.args[0], ast.Constant) else ""
    plain = called in ("import_module", "__import__") and isinstance(name, str) and not name.startswith(".")
    return str(name) if plain else ""


def _below(folder: Path, name: str, members: Sequence[str] = (), near: bool = False) -> Iterator[Path]:
    """The module, the packages that it lies in, and what is imported of it, which may be modules too."""
    parts = [p for p in name.split(".") if p]
    if not near and installed(parts[0]):
        return
    yield from (folder.joinpath(*parts[:i]) for i in range(1, len(parts) + 1))
    yield from (folder.joinpath(*parts, m) for m in members if m != "*")


def installed(name: str) -> bool:
    """Whether Python finds this elsewhere first: the folder of a user's file is the last one that it looks into."""
    packages = [p for p in sys.path if p.endswith("-packages")]
    return name == "gruppo" or name in sys.stdlib_module_names or PathFinder.find_spec(name, packages) is not None
