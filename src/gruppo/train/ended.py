"""Whether a run has come to its end: one rule for the list of runs, for comparisons and for Python."""

from pathlib import Path
from typing import Any

from gruppo.train.folder import REMEDY, RunFolder, read_json


def ended(path: Path) -> bool:
    """Whether its summary is of all its steps, and not of fewer, after which it was made longer."""
    run = RunFolder(path)
    if not run["summary.json"].is_file() or not run["config.toml"].is_file():
        return False
    steps, rows, summary = run_table(path)["steps"], run.metrics(), read_json(run["summary.json"])
    last = int(rows[-1]["step"]) if rows else 0
    return summary.get("steps") == last and (last >= steps or "ended_early" in summary)


def run_table(path: Path) -> dict[str, Any]:
    """config.toml as a table, without running any code; a ValueError if it is not that of a run."""
    table = RunFolder(path).config_table()
    whole = isinstance(table.get("steps"), int) and all(isinstance(table.get(k), dict) for k in ("method", "task"))
    if not whole:
        raise ValueError(
            f"{path / 'config.toml'} is not that of a run: steps, [method] and [task] must be there. {REMEDY}"
        )
    return table
