"""Modules of the user that Python has: what each was made of, and how those are forgotten whose files have changed.

For a Python session that has several runs: between two of them a user edits a file, and the record of the second run
would name the new code while the old one runs.
"""

import importlib
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from gruppo.tasks.beside import imported_names

USER = "gruppo_user_"  # the names of files that were loaded by their paths begin with it


@dataclass(frozen=True)
class Loaded:
    module: ModuleType
    file: Path
    held: bytes  # the hash of what it was made of
    reloaded: bool = False  # in place, by the user: what imports it still has the objects of before

    @property
    def changed(self) -> bool:
        return self.reloaded or _held(self.file) != self.held

    @property
    def ours(self) -> bool:
        """Whether our loader has made it. Another one is the user's own: their objects belong to it."""
        spec = self.module.__spec__
        return self.module.__name__.startswith(USER) or (spec is not None and isinstance(spec.loader, FromSource))


_LOADED: dict[str, Loaded] = {}  # by module
_FILES: dict[str, Path] = {}  # of every module that was loaded, also of those that were forgotten
_BESIDE: set[str] = set()  # modules that files of the user import from their own folders
when_forgotten: list[Callable[[Collection[str]], object]] = []  # they drop what was made of these modules


class FromSource(SourceFileLoader):
    """Compiles what stands in the file now.

    Python takes a compiled copy for current if the source has the same size and the same second of change: the run
    would name another reward, and the old one would judge.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)

    def exec_module(self, module: ModuleType) -> None:
        source = self.get_data(self.path)
        note(module, Path(self.path), source)
        exec(self.source_to_code(source, self.path), module.__dict__)


def note(module: ModuleType, file: Path, source: bytes) -> None:
    """This module is made of that source."""
    before, held = _LOADED.get(module.__name__), _hash(source)
    again = before is not None and before.module is module and (before.reloaded or before.held != held)
    _LOADED[module.__name__], _FILES[module.__name__] = Loaded(module, file, held, again), file


def note_beside(names: Iterable[str]) -> None:
    """A file that is being loaded imports these modules from its folder. Some, the user may have imported before."""
    for name in names:
        _BESIDE.add(name)
        module, known = sys.modules.get(name), _LOADED.get(name)
        at = getattr(module, "__file__", None)
        if module is not None and isinstance(at, str) and (known is None or known.module is not module):
            _LOADED[name] = Loaded(module, Path(at), _held(Path(at)))


def file_of(module: str) -> str:
    """The file of a module of the user, also of one that was forgotten since; "" for any other module."""
    return str(_FILES.get(module, ""))


def changed_files() -> list[Path]:
    """Files of which Python has a module that was made of what they held before."""
    return sorted({one.file.resolve() for one in _present().values() if one.changed})


def forget_changed(kept: Collection[Path] = ()) -> None:
    """Modules whose files have changed, and those that import such ones, are loaded anew when they are next named.

    `kept`: files of runs that go on. They stay as they are, and so does what the user has imported.
    """
    present = {name: one for name, one in _present().items() if one.file.resolve() not in kept}
    forgotten = {name for name in _stale(present) if present[name].ours}
    for name in forgotten:
        package, _, last = name.rpartition(".")
        if getattr(sys.modules.get(package), last, None) is present[name].module:
            delattr(sys.modules[package], last)  # else `from package import last` would find it there
        del sys.modules[name], _LOADED[name]
    if forgotten:
        importlib.invalidate_caches()  # a file beside it may be newer than the list of its folder
        for forget in when_forgotten:
            forget(forgotten)


def _present() -> dict[str, Loaded]:
    """The user's modules that Python still has. A script is never one of them, whatever its folder holds."""
    found = {name: one for name, one in list(_LOADED.items()) if sys.modules.get(name) is one.module}
    mine = {name for name in found if name.startswith(USER) or name in _BESIDE}
    return {name: found[name] for name in mine - {"__main__"}}


def _stale(present: dict[str, Loaded]) -> set[str]:
    """Those that have changed, and those that import a stale one: their objects would be of two versions."""
    stale = {name for name, one in present.items() if one.changed}
    if not stale:
        return stale
    imports = {name: _imports(name, one.file) for name, one in present.items() if name not in stale}
    while more := {name for name, names in imports.items() if name not in stale and names & stale}:
        stale |= more
    return stale


def _imports(name: str, file: Path) -> set[str]:
    """The modules that it imports, the packages around it among them."""
    parts = name.split(".")
    root = file.parent if name.startswith(USER) else file.parents[len(parts) - (file.name != "__init__.py")]
    return imported_names(file, root) | {".".join(parts[:i]) for i in range(1, len(parts))}


def _held(file: Path) -> bytes:
    """The hash of its content; of a file that is gone, nothing."""
    try:
        return _hash(file.read_bytes())
    except OSError:
        return b""


def _hash(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()
