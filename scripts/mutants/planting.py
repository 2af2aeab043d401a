"""Planted mistakes: one for each pitfall, each in a copy of the tree, and the tests until one fails."""

import os
import shutil
import sys
import tempfile
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import running
from making import ROOT

PLANTED = ROOT / "tests" / "mutants" / "planted.toml"
COPIED = ("src", "tests", "docs", "scripts", "examples", "pyproject.toml", "README.md")
# The pitfall's own tests first; only what these miss is shown to the others.
THEN = (
    ("golden", "data", "registry/test_records.py"),
    ("equivalences", "engines"),
    ("pitfalls", "laws", "policies", "tasks", "registry", "train"),
)


def mistakes(only: list[int]) -> list[dict[str, Any]]:
    """The list, each checked: what is to be replaced stands once in its file."""
    rows = tomllib.loads(PLANTED.read_text(encoding="utf-8"))["mistake"]
    for row in rows:
        count = (ROOT / "src" / "gruppo" / row["file"]).read_text(encoding="utf-8").count(row["before"])
        if count != 1:
            raise ValueError(
                f"pitfall {row['pitfall']}: the text to replace stands {count} times in {row['file']}, so the mistake "
                "cannot be planted. Write it anew for the code as it is."
            )
    return [row for row in rows if not only or row["pitfall"] in only]


def main(only: list[int], jobs: int) -> int:
    rows = mistakes(only)
    running.prepare()
    missed: list[int] = []
    with tempfile.TemporaryDirectory(prefix="gruppo-mutants-") as folder:
        for i in range(jobs):
            _copy(Path(folder) / str(i))
        free = list(range(jobs))
        taken: dict[int, int] = {}

        def done(row: dict[str, Any], result: dict[str, Any]) -> None:
            free.append(taken.pop(row["pitfall"]))
            caught = result["status"] != "survived"
            if not caught:
                missed.append(row["pitfall"])
            how = result.get("by", result["status"]) if caught else f"MISSED by {result['tests']} tests"
            print(f"pitfall {row['pitfall']:2}  {row['says']}\n            {how}", flush=True)

        def work() -> Any:
            for row in rows:
                place = taken[row["pitfall"]] = free.pop()
                yield row, partial(_plant, Path(folder) / str(place), row)

        running.pool(work(), jobs, done)
    print(f"{len(rows) - len(missed)} of {len(rows)} planted mistakes were caught")
    return int(bool(missed))


def _copy(place: Path) -> None:
    place.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, place / name)


def _plant(place: Path, row: dict[str, Any]) -> dict[str, Any]:
    """In a fork: the mistake stands in the files themselves, since some tests start processes of their own."""
    _mend(place)  # of the mistake before
    path = place / "src" / "gruppo" / row["file"]
    path.write_text(path.read_text(encoding="utf-8").replace(row["before"], row["after"]), encoding="utf-8")
    sys.path[:] = [str(place / "src"), *(p for p in sys.path if Path(p) != ROOT / "src")]
    sys.dont_write_bytecode = True
    own = sorted(p.relative_to(place).as_posix() for p in place.glob(f"tests/pitfalls/test_{row['pitfall']:02}_*.py"))
    os.chdir(place)
    seen, result = 0, dict[str, Any](status="survived", tests=0)
    for tests in (own, *([f"tests/{name}" for name in names] for names in THEN)):
        if tests:
            result = running.in_order(tests)
            seen += result.get("tests", 0)
        if result["status"] != "survived":
            break
    return result | {"tests": seen}


def _mend(place: Path) -> None:
    """Undo every mistake in a copy."""
    for row in tomllib.loads(PLANTED.read_text(encoding="utf-8"))["mistake"]:
        name = Path("src") / "gruppo" / row["file"]
        shutil.copy2(ROOT / name, place / name)
