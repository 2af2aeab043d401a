"""What a run depends on beside its configuration: files of the user, model folders, versions, as hashes."""

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import gruppo
from gruppo.tasks.beside import class_constants, imported_beside
from gruppo.tasks.imports import is_file, is_path, split_path
from gruppo.tasks.scorers import SCORERS
from gruppo.train.config import RunConfig
from gruppo.train.manifest import sha256

WHOLE = 1 << 30  # bytes; of larger files blocks are hashed
BLOCK, BLOCKS = 1 << 16, 1024


def depends(config: RunConfig) -> dict[str, str]:
    """{what: its hash or version}. Tasks know the digest of their data, and the method's files are in `code`."""
    out = {"gruppo": gruppo.__version__, "torch": torch.__version__}
    for setting, path in _named(config):
        if path is not None and path.exists():
            out[f"{setting} ({path.name})"] = fingerprint(path)
    for setting, value in _code(config):
        source = _source(value)
        if source is not None and is_file(value.rpartition(":")[0]):
            out |= {f"{setting}, imported ({name})": fingerprint(p) for name, p in imported_beside(source).items()}
    return out


def _code(config: RunConfig) -> tuple[tuple[str, str], ...]:
    return ("task.reward", config.task.reward), ("task", config.task.name), ("task.agent", config.task.agent)


def _named(config: RunConfig) -> Iterator[tuple[str, Path | None]]:
    task = config.task
    for setting, value in _code(config):
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
        spec = None if is_file(where) else importlib.util.find_spec(where)
    except (ValueError, ImportError):  # a data file, or what will be refused when it is loaded
        return None
    return Path(where) if is_file(where) else Path(spec.origin) if spec is not None and spec.origin else None


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


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What has changed since, one line each."""
    names = [n for n in dict.fromkeys((*before, *now)) if before.get(n) != now.get(n)]
    return [f"{n}: {before.get(n, 'absent')} → {now.get(n, 'absent')}" for n in names]
