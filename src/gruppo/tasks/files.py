"""JSONL files: `task=./data.jsonl`. One row is one JSON object on a line of its own.

Rows with a field `env` are levels of an environment: `gruppo.envs.levels` reads them.
"""

import json
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any

from gruppo.tasks.base import TaskSet
from gruppo.tasks.build import SHARE, task_set
from gruppo.tasks.imports import no_file
from gruppo.tasks.rows import Table
from gruppo.tasks.settings import TaskConfig, refuse_unused

ENDINGS = (".jsonl", ".ndjson")
USED = ("level", "seed", "train_size", "held_out", "prompt", "answer", "solution", "chosen", "rejected")


def load(settings: TaskConfig) -> TaskSet:
    """The task set of a file, with a share of its rows or another file held out."""
    refuse_unused(settings, USED)
    table, digest = read(settings.name)
    held, more = held_out(settings.held_out)
    if "env" in table.fields:
        return import_module("gruppo.envs.levels").task_set(table, held, settings, digest + more)
    return task_set(Path(settings.name).stem, table, held, settings, digest + more)


def held_out(value: float | str) -> tuple[Table | float, str]:
    """A share, or the rows of another file and their digest."""
    if value == "":
        return SHARE, ""
    try:
        return float(value), ""
    except ValueError:
        if is_data(str(value)):
            return read(str(value))
    raise ValueError(
        f"task.held_out={value} is neither a share of the rows nor a JSONL file. Use for example task.held_out=0.1 or "
        "task.held_out=./test.jsonl."
    )


def is_data(name: str) -> bool:
    return name.endswith(ENDINGS)


def read(name: str) -> tuple[Table, str]:
    """The rows of a file, and a hash of its bytes."""
    path = Path(name).expanduser()
    raw = _bytes(path)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin1"
        raise ValueError(
            f"{path}, line {line}: byte {raw[error.start]:#04x} is not UTF-8. Save it as UTF-8, for example with  "
            f"iconv -f {encoding} -t utf-8 {path.name}"
        ) from None
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: JSON texts may hold other separators
        if line.strip():
            rows.append(_row(f"{path}, line {number}", path, line))
            lines.append(number)
    if not rows:
        raise ValueError(f"{path} is empty, so there are no tasks. Write one JSON object on each line.")
    return Table(path.stem, rows, lambda i: f"{path}, line {lines[i]}"), blake2b(raw, digest_size=8).hexdigest()


def _bytes(path: Path) -> bytes:
    if path.is_dir():
        raise ValueError(f"{path} is a folder and not a file. For a folder of data, use task=hf:{path}")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ValueError(no_file(path)) from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}). Check its permissions.") from None


def _row(where: str, path: Path, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except RecursionError:
        raise ValueError(f"{where}: lists or objects are nested too deep to be read. Remove the row.") from None
    except ValueError as error:
        said = str(error).partition(": line")[0]
        at = f", column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        whole = f" If the file is one JSON list, use task=hf:{path}" if line.lstrip()[:1] == "[" else ""
        raise ValueError(f"{where}{at}: {said}. Write one complete JSON object on each line.{whole}") from None
    if not isinstance(row, dict):
        raise ValueError(
            f'{where}: {type(row).__name__} and not an object. Write {{"prompt": "…", "answer": "…"}} on each line.'
        )
    return row
