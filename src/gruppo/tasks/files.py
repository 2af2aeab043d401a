"""JSONL files: `task=./data.jsonl`. One row is one JSON object on a line of its own."""

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

from gruppo.tasks.base import TaskSet
from gruppo.tasks.build import SHARE, task_set
from gruppo.tasks.imports import nearest
from gruppo.tasks.rows import Table
from gruppo.tasks.settings import TaskConfig, refuse_unused

ENDINGS = (".jsonl", ".ndjson")
USED = ("level", "seed", "train_size", "held_out", "prompt", "answer", "solution", "chosen", "rejected")


def load(settings: TaskConfig) -> TaskSet:
    """The task set of a file, with a share of its rows or another file held out."""
    refuse_unused(settings, USED)
    table, digest = read(settings.name)
    held, more = held_out(settings.held_out)
    return task_set(Path(settings.name).stem, table, held, settings, digest + more)


def held_out(told: float | str) -> tuple[Table | float, str]:
    """A share, or the rows of another file."""
    if told == "":
        return SHARE, ""
    try:
        return float(told), ""
    except ValueError:
        if not is_data(str(told)):
            raise ValueError(
                f"task.held_out={told} is neither a share of the rows nor a JSONL file, so nothing can be measured. "
                "Use for example task.held_out=0.1 or task.held_out=./test.jsonl."
            ) from None
        return read(str(told))


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
        wide = raw[:2] in (b"\xff\xfe", b"\xfe\xff")  # what editors begin UTF-16 with
        raise ValueError(
            f"{path}, line {line}: byte {raw[error.start]:#04x} is not UTF-8, so the file cannot be read. Save it as "
            f"UTF-8, for example with  iconv -f {'utf-16' if wide else 'latin1'} -t utf-8 {path.name}"
        ) from None
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: JSON texts may hold other separators
        if line.strip():
            rows.append(_row(path, number, line))
            lines.append(number)
    if not rows:
        raise ValueError(f"{path} is empty, so there are no tasks. Write one JSON object on each line.")
    return Table(path.stem, rows, lambda i: f"{path}, line {lines[i]}"), blake2b(raw, digest_size=8).hexdigest()


def _bytes(path: Path) -> bytes:
    if path.is_dir():
        raise ValueError(f"{path} is a folder, so it cannot be read as a file. A folder of data: task=hf:{path}")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        beside = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        raise ValueError(
            f"there is no file {path}, so there are no tasks.{nearest(path.name, beside)} A path counts from the "
            "folder in which gruppo was started."
        ) from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}), so there are no tasks. Mend that.") from None


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except RecursionError:
        raise ValueError(
            f"{path}, line {number}: lists or objects in one another, too deep to be read. Nothing was started; take "
            "the row out."
        ) from None
    except ValueError as error:
        said = str(error).partition(": line")[0]
        at = f", column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        whole = " The file looks like one JSON list: task=hf:" + str(path) if line.lstrip()[:1] == "[" else ""
        raise ValueError(
            f"{path}, line {number}{at}: {said}. Nothing was started; write one whole JSON object on each line.{whole}"
        ) from None
    if not isinstance(row, dict):
        raise ValueError(
            f"{path}, line {number}: {type(row).__name__} and not an object, so it has no fields. Write one JSON "
            'object on each line: {"prompt": "…", "answer": "…"}'
        )
    return row
