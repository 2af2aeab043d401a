"""Which built-in worlds a task names, before anything is loaded."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from gruppo.envs.registry import BUILT_IN

LINE = 100_000  # characters, at most, of a row that is looked at


def built_in_worlds(task: str) -> tuple[str, ...]:
    """Of a world, of a mixture of worlds alone, or of the first row of a file of levels; else none."""
    if task.startswith("mix:"):
        parts = [part.rpartition("*")[2].partition("@")[0].strip() for part in task.removeprefix("mix:").split("+")]
    else:
        parts = [_first_env(task) if task.endswith(".jsonl") else task]
    return tuple(parts) if all(part in BUILT_IN for part in parts) else ()


def _first_env(file: str) -> str:
    """What the file is, and whether it is one, is said when it is read."""
    with suppress(OSError, ValueError, RecursionError), Path(file).open(encoding="utf-8") as rows:
        first: Any = json.loads(next((line for line in iter(lambda: rows.readline(LINE), "") if line.strip()), ""))
        return str(first.get("env", "")) if isinstance(first, dict) else ""
    return ""
