"""Objects by import path: `./mine.py:Mine` (a file) or `package.module:Name` (a module).

Used wherever an object of the user can replace a built-in one: tasks, rewards, methods, environments.
"""

import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from difflib import get_close_matches
from hashlib import blake2b
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import ModuleType
from typing import Any

from gruppo.tasks import loaded
from gruppo.tasks.beside import imported_beside, mistaken, named
from gruppo.tasks.loaded import USER, FromSource, note, note_beside


def load_object(path: str) -> Any:
    """The object at an import path; a ValueError says what is wrong with the path or the file."""
    where, name = split_path(path)
    module = _from_file(path, Path(where)) if is_file(where) else _from_module(path, where)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(_no_name(path, found, part, where))
        found = getattr(found, part)
    return found


def is_path(text: str) -> bool:
    """Whether a name is an import path, and not the name of a built-in object."""
    return ":" in text or is_file(text)


def is_file(where: str) -> bool:
    return where.endswith(".py") or "/" in where or "\\" in where


def split_path(path: str) -> tuple[str, str]:
    """The two parts of `where:name`; a file is made absolute, so that another process finds it too."""
    where, colon, name = path.rpartition(":")
    if not colon or not where or not all(part.isidentifier() for part in name.split(".")):
        raise ValueError(f"{path!r} is no import path. Write ./file.py:name for your own file, or package.module:name.")
    if is_file(where):
        where = str(Path(where).expanduser().absolute())
    return where, name


def library(name: str, why: str, extra: str = "data") -> ModuleType:
    """A module of an optional package; a ValueError says how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        missing = (error.name or package).partition(".")[0]
        what = missing if missing == package else f"{missing}, which {package} requires,"
        raise ValueError(f"{what} is not installed, and {why}. Install it:  pip install 'gruppo[{extra}]'") from None


def nearest(word: str, among: Any) -> str:
    """` Did you mean 'x'?`, or nothing if no known name is close."""
    close = get_close_matches(word, [str(a) for a in among], n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def misfit(found: Any, /, *values: Any, **arguments: Any) -> str:
    """Why `found` cannot be called like this; empty if it can."""
    try:
        inspect.signature(found).bind(*values, **arguments)
    except TypeError as error:
        return str(error)
    except ValueError:  # a built-in without a signature
        return ""
    return ""


def written(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in arguments.items()) or "no arguments"


def no_file(path: Path, what: str = "file") -> str:
    """The error message for a path that does not exist."""
    names = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
    near = nearest(path.name, names)
    return f"there is no {what} {path}.{near} A path is relative to the folder in which gruppo was started."


_FOLDERS: set[str] = set()  # of the user's files that were loaded


def _finder(path: str) -> FileFinder:
    """For `sys.path_hooks`: what a user's file imports from its folder, and packages there, is compiled anew as well.

    Not what is installed below that folder: the deepest entry of `sys.path` around a path says whose it is.
    """
    around = [p for p in sys.path if p and Path(path).is_relative_to(p)]
    if max(around, key=len, default="") not in _FOLDERS:
        raise ImportError(path)
    extensions, compiled = (ExtensionFileLoader, EXTENSION_SUFFIXES), (SourcelessFileLoader, BYTECODE_SUFFIXES)
    return FileFinder(path, extensions, (FromSource, SOURCE_SUFFIXES), compiled)


def _imports_from(folder: str) -> None:
    """The files in this folder can be imported from now on, but shadow nothing."""
    if folder not in sys.path:
        sys.path.append(folder)
    if folder in _FOLDERS:
        return
    _FOLDERS.add(folder)
    if _finder not in sys.path_hooks:
        sys.path_hooks.insert(0, _finder)
    for known in [p for p in sys.path_importer_cache if Path(p).is_relative_to(folder)]:
        del sys.path_importer_cache[known]


def _from_file(path: str, file: Path) -> ModuleType:
    if not file.is_file():
        raise ValueError(f"{path}: {no_file(file)}")
    name = _name(file)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path}: {file} is no Python file. Name a file that ends in .py.")
    if isinstance(spec.loader, SourceFileLoader):
        spec.loader = FromSource(name, str(file))
    _imports_from(str(file.parent))
    note_beside([named(at) for at in imported_beside(file)])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if not isinstance(spec.loader, FromSource):  # which notes what it reads
        note(module, file, file.read_bytes())
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        raise ValueError(f"{path}: {why}" if (why := mistaken(file)) else _raised(path, error)) from error
    if why := mistaken(file):
        del sys.modules[name]
        raise ValueError(f"{path}: {why}")
    return module


def module_of(path: str) -> str:
    """The name in `sys.modules` of the module that an import path leads to."""
    where, _ = split_path(path)
    return _name(Path(where)) if is_file(where) else where


def _name(file: Path) -> str:
    """It depends on the path alone, so the same file is the same module in every process."""
    return f"{USER}{file.stem}_{blake2b(str(file.resolve()).encode(), digest_size=4).hexdigest()}"


def _from_module(path: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name and (where == error.name or where.startswith(error.name + ".")):
            said = f"{path}: there is no module {error.name!r}. Install it, or name a file: ./file.py:name."
            raise ValueError(said) from error
        raise ValueError(_raised(path, error)) from error
    except BaseException as error:
        raise ValueError(_raised(path, error)) from error


def _raised(path: str, error: BaseException) -> str:
    """Quotes an error of the user's file with its line, without the frames of the import machinery."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    own = [f for f in frames if f.filename not in (__file__, loaded.__file__)]
    own = [f for f in own if _theirs(f.filename)] or own
    at = f' at {own[-1].filename}:{own[-1].lineno} "{own[-1].line}"' if own else ""
    said = "".join(traceback.format_exception_only(error)).strip()
    return f"{path}: importing it failed{at}: {said}"


def _theirs(file: str) -> bool:
    """Whether it is a file of the user: neither gruppo's nor one of Python's or of an installed package."""
    path = Path(file)
    ours = (Path(__file__).parents[1], Path(sysconfig.get_path("stdlib")))
    return path.is_file() and not any(path.is_relative_to(p) for p in ours) and "site-packages" not in path.parts


def _no_name(path: str, found: Any, part: str, where: str) -> str:
    known = [n for n, x in getattr(found, "__dict__", {}).items() if not n.startswith("_") and _own(x, found)]
    has = f"It has: {', '.join(sorted(known)[:12])}." if known else "It is empty."
    return f"{path}: there is no {part!r} in {where}.{nearest(part, known)} {has}"


def _own(x: Any, holder: Any) -> bool:
    """Whether it was made there: modules, classes and functions that were imported are not meant."""
    if isinstance(x, ModuleType):
        return False
    here = holder.__name__ if isinstance(holder, ModuleType) else getattr(holder, "__module__", "")
    return not (inspect.isclass(x) or inspect.isroutine(x)) or x.__module__ == here
