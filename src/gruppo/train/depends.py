"""What a run depends on beside its configuration: files of the user, model folders, versions, as hashes."""

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import torch

import gruppo
from gruppo.tasks.beside import class_constants, imported_beside, installed, texts
from gruppo.tasks.files import is_data, read
from gruppo.tasks.imports import is_file, is_path, split_path
from gruppo.tasks.loaded import file_of
from gruppo.tasks.scorers import SCORERS
from gruppo.tasks.settings import TaskConfig
from gruppo.train.config import RunConfig
from gruppo.train.manifest import sha256

WHOLE = 1 << 30  # bytes; of larger files blocks are hashed
BLOCK, BLOCKS = 1 << 16, 1024
OWN = re.compile(r"(\S+\.py|[^\W\d]\w*(\.\w+)*):[^\W\d]\w*(\.\w+)*")  # ./file.py:name, package.module:name
OWN_PATH = re.compile(rf"{OWN.pattern}|.+\.py:[^\W\d]\w*(\.\w+)*")  # the folder may have spaces
LIBRARIES = {  # the packages of each adapter
    "gymnasium": ("gymnasium",),
    "minigrid": ("minigrid", "gymnasium"),
    "open_spiel": ("open_spiel",),
    "scienceworld": ("scienceworld",),
    "textarena": ("textarena",),
    "textworld-express": ("textworld-express",),
}


def depends(config: RunConfig) -> dict[str, str]:
    """{what: its hash or version}. Tasks know the digest of their data, and the method's files are in `code`."""
    out = {"gruppo": gruppo.__version__, "torch": torch.__version__}
    code = list(_code(config.task))
    for setting, path in _named(config, code):
        if path is not None and path.exists():
            out[f"{setting} ({path.name})"] = fingerprint(path)
    for setting, value in code:
        out |= {f"{setting}, imported ({name})": fingerprint(p) for name, p in _imported(value).items()}
        out |= {f"task, library ({name})": _version(name) for name in _libraries(value)}
    return out


def user_files(x: Any) -> frozenset[Path]:
    """The user's Python files that a configuration, or a part of it, names, and what they import from their folders."""
    named = {text for text in _texts(x) if OWN_PATH.fullmatch(text)}
    if isinstance(x, RunConfig):
        named |= {value for _, value in _code(x.task)}
    files = [f for p in named if (source := _source(p)) is not None for f in (source, *_imported(p).values())]
    return frozenset(file.resolve() for file in files)


def _texts(x: Any) -> Iterator[str]:
    """The texts in a tree, and the import paths of its classes."""
    if isinstance(x, str):
        yield x
    elif isinstance(x, Mapping):
        yield from (text for value in x.values() for text in _texts(value))
    elif isinstance(x, list | tuple):
        yield from (text for value in x for text in _texts(value))
    elif dataclasses.is_dataclass(x) and not isinstance(x, type):
        module = type(x).__module__
        yield f"{file_of(module) or module}:{type(x).__name__}"
        yield from (text for field in dataclasses.fields(x) for text in _texts(getattr(x, field.name)))


def _code(task: TaskConfig) -> Iterator[tuple[str, str]]:
    """What the settings name, then the worlds that rows of levels name, then what all of these name in their texts."""
    ahead = [("task.reward", task.reward), ("task", task.name), ("task.agent", task.agent)]
    ahead += [(f"task.tools, {name}", name) for name in map(str.strip, task.tools.split(",")) if is_path(name)]
    ahead += [(f"task, {name}", name) for name in _worlds(task)]
    known = {value for _, value in ahead}
    while ahead:
        setting, value = ahead.pop(0)
        yield setting, value
        source = _source(value)
        files = [] if source is None else [source, *_imported(value).values()]
        for name in (text for file in files for text in texts(file) if _names_own(text)):
            if name not in known:
                known.add(name)
                ahead.append((f"task, {name}", name))


def _worlds(task: TaskConfig) -> list[str]:
    """The worlds in files of levels."""
    files = [name for name in (task.name, task.held_out) if isinstance(name, str) and is_data(name)]
    try:
        rows = [row for name in files for row in read(name)[0].rows]
    except ValueError:  # which is said when the tasks are loaded
        return []
    return sorted({row["env"] for row in rows if isinstance(row.get("env"), str)})


def _names_own(text: str) -> bool:
    """Whether a text in code of the user names other code of theirs, or a world of a library."""
    if text.startswith("env:"):
        return bool(_libraries(text))
    return bool(OWN.fullmatch(text)) and (is_file(text) or not installed(text.partition(".")[0].partition(":")[0]))


def _imported(path: str) -> dict[str, Path]:
    """{name: file} of the user's files that an object's file imports."""
    source = _source(path)
    if source is None:
        return {}
    parts = path.rpartition(":")[0].split(".")
    if is_file(path.rpartition(":")[0]):
        return imported_beside(source)
    if installed(parts[0]):  # a library: its files change with its version
        return {}
    return imported_beside(source, source.parents[len(parts) - (source.name != "__init__.py")])


def _libraries(path: str) -> tuple[str, ...]:
    """The packages behind `env:LIBRARY/ID` and `gym:NAME`, or that of a module which is installed."""
    kind, _, rest = path.partition(":")
    if kind == "gym":
        return ("reasoning_gym",)
    if kind == "env":
        return LIBRARIES.get(rest.partition("/")[0], ())
    top = kind.partition(".")[0]
    if _source(path) is None or is_file(kind) or not installed(top):
        return ()
    return tuple(importlib.metadata.packages_distributions().get(top, ()))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _named(config: RunConfig, code: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Path | None]]:
    task = config.task
    for setting, value in code:
        yield setting, _source(value)
    written = {f"task.args.{name}" for name in _written(task.reward)}
    for name, value in _leaves({"args": task.args, "options": task.options}, "task"):
        if name not in written:
            yield name, _file(value)
    for word in task.agent.split():  # files of a command line
        yield "task.agent", _file(word) if ":" not in word and Path(word).is_file() else None
    yield "model", _file(config.model.name)
    for role, cast in config.method.cast.items():
        yield f"method.cast.{role}", _file(cast.start)


def _written(reward: str) -> tuple[str, ...]:
    """The arguments of a scorer that name what it writes, such as a cache: it changes in every run.

    A class says so by `writes = ("cache",)`. It is read, and not imported: code of the user runs in the judge alone.
    """
    path = SCORERS[reward][0] if reward in SCORERS else reward
    source = _source(path, ours=True)
    return () if source is None else class_constants(source, path.rpartition(":")[2], "writes")


def _file(value: Any) -> Path | None:
    """A text that names a file or folder; a bare word such as `tiny` is a name, whatever lies in this folder."""
    return Path(value).expanduser() if isinstance(value, str) and is_file(value) else None


def _source(path: str, ours: bool = False) -> Path | None:
    """The file of `./file.py:name` or `package.module:name`; unless `ours` is set, none of gruppo's."""
    if not is_path(path) or path.startswith(("hf:", "gym:", "mix:")) or (path.startswith("gruppo.") and not ours):
        return None
    try:
        where, _ = split_path(path)
        return Path(where) if is_file(where) else _module(where)
    except (ValueError, ImportError):  # a data file, or what will be refused when it is loaded
        return None


def _module(name: str) -> Path | None:
    """The file of a module. No package around it is imported: code of the user runs in the judge alone."""
    top, *rest = name.split(".")
    spec = importlib.util.find_spec(top)
    for i in range(len(rest)):
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(".".join((top, *rest[: i + 1])), spec.submodule_search_locations)
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def _leaves(value: Any, at: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for k, v in value.items():
            yield from _leaves(v, f"{at}.{k}")
    else:
        yield at, value


def fingerprint(path: Path) -> str:
    """Of a file: SHA-256, beyond 1 GB of its size and 1,024 blocks. Of a folder: of all its files and their names."""
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
        whole = "\n".join(f"{p.relative_to(path)} {fingerprint(p)}" for p in files)
        return hashlib.sha256(whole.encode()).hexdigest()[:16]
    size = path.stat().st_size
    if size <= WHOLE:
        return sha256(path)[:16]
    hashed = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for i in range(BLOCKS):
            file.seek(i * (size - BLOCK) // (BLOCKS - 1))
            hashed.update(file.read(BLOCK))
    return hashed.hexdigest()[:16]


def differences(before: Mapping[str, str], now: Mapping[str, str], said: Sequence[str] = ()) -> list[str]:
    """What has changed since, one line each.

    A file that came or went because another one is named is not told again: `said` are the changes of the settings.
    """
    renamed = {line.partition(":")[0] for line in said}
    names = [n for n in dict.fromkeys((*before, *now)) if before.get(n) != now.get(n)]
    names = [n for n in names if (n in before and n in now) or not renamed.intersection(_settings(n))]
    return [f"{n}: {before.get(n, 'absent')} → {now.get(n, 'absent')}" for n in names]


def _settings(name: str) -> tuple[str, ...]:
    """The settings that name what a run depends on: `task.reward (mine.py)` is named by `task.reward`."""
    setting = re.split(r" \(|, ", name, maxsplit=1)[0]
    return setting, f"{setting}.name", f"{setting}.start"
