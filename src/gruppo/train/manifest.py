"""Checksums of the files of a folder. They are written last, so a folder that has them was written to its end."""

import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gruppo.data.files import sync

NAME = "manifest.json"
FORMAT = 2


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """The size and SHA-256 of these files of a folder, into `manifest.json`, at once or not at all."""
    names = sorted(names)
    with ThreadPoolExecutor() as pool:  # a checksum takes a second for a gigabyte, and other threads can run meanwhile
        entries = pool.map(lambda name: _entry(folder / name), names)
        write_text(folder / NAME, _manifest(dict(zip(names, entries, strict=True))))


def read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """{file: its size and checksum}; a ValueError names what is wrong with the manifest itself."""
    path = folder / NAME
    if not path.is_file():
        raise ValueError(f"{path.name} is missing")
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        found, files, sha = table["format"], table["files"], table["sha256"]
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{path.name} cannot be read") from None
    if found != FORMAT:
        raise ValueError(
            f"{path.name} has format {found}, and this gruppo reads {FORMAT}: use the gruppo that wrote it"
        )
    if sha != _of_table(files):
        raise ValueError(f"{path.name} is not as it was written")
    return files


def damage(folder: Path, sizes_only: bool = False) -> str:
    """What is wrong with a folder, naming the file; "" if every file is as it was written, or has that size."""
    if not folder.is_dir():
        return "it is no folder"
    try:
        files = read_manifest(folder)
    except ValueError as error:
        return str(error)
    for name, known in files.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != known["bytes"]:
            return f"{name} has {file.stat().st_size} bytes instead of {known['bytes']}"
        if not sizes_only and sha256(file) != known["sha256"]:
            return f"{name} is not as it was written"
    return ""


def add_to_manifest(folder: Path, name: str) -> None:
    """A file more, or one that was written again. A manifest that cannot be read begins anew."""
    try:
        files = read_manifest(folder)
    except ValueError:
        files = {}
    write_text(folder / NAME, _manifest({**files, name: _entry(folder / name)}))


def matches_manifest(folder: Path, name: str) -> bool:
    """Whether a file is as it was written."""
    try:
        return read_manifest(folder)[name] == _entry(folder / name)
    except (ValueError, KeyError, OSError):
        return False


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def _manifest(files: dict[str, dict[str, Any]]) -> str:
    return json.dumps({"format": FORMAT, "files": files, "sha256": _of_table(files)})


def _of_table(files: Any) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def write_text(path: Path, text: str) -> None:
    """The file has the old text or the new one, whatever happens in between."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_text(text, encoding="utf-8")
        sync(draft)
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)
