"""Planted mistakes: one for each pitfall, each in a copy of the tree, and the tests until one fails."""

import os
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import running
from making import ROOT

PLANTED = ROOT / "tests" / "mutants" / "planted.toml"
COPIED = ("src", "tests", "docs", "scripts", "examples", "pyproject.toml", "README.md")
# The pitfall's own tests first; only what these miss is shown to the others.
THEN = (
    ("registry/test_records.py", "policies/test_chat.py", "policies/test_chat_bos.py", "golden", "methods"),
    ("data", "stages", "equivalences", "engines"),
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
    missed = rows
    with tempfile.TemporaryDirectory(prefix="gruppo-mutants-") as folder:
        places = [Path(folder) / str(i) for i in range(jobs)]
        for place in places:
            _copy(place)
        for stage in range(1 + len(THEN)):
            missed = _stage(missed, stage, list(places))
    print(f"{len(rows) - len(missed)} of {len(rows)} planted mistakes were caught")
    for row in missed:
        print(f"MISSED: pitfall {row['pitfall']}, {row['says']} ({row['file']})")
    return int(bool(missed))


def _stage(rows: list[dict[str, Any]], stage: int, free: list[Path]) -> list[dict[str, Any]]:
    """Show mistakes to the tests of one stage; those that were missed."""
    missed, taken, start, count = list[dict[str, Any]](), dict[int, Path](), time.monotonic(), len(rows)

    def done(row: dict[str, Any], result: dict[str, Any]) -> None:
        nonlocal count
        count -= 1
        free.append(taken.pop(row["pitfall"]))
        caught = result["status"] != "survived"
        if not caught:
            missed.append(row)
        left = (time.monotonic() - start) / (len(rows) - count) * count
        how = result.get("by", result["status"]) if caught else f"not seen by {result['tests']} tests of stage {stage}"
        print(f"pitfall {row['pitfall']:2}  {row['says']}\n            {how}   ({left / 60:.1f} min left)", flush=True)

    def work() -> Iterator[tuple[dict[str, Any], partial[dict[str, Any]]]]:
        for row in rows:
            place = taken[row["pitfall"]] = free.pop()
            yield row, partial(_plant, place, row, stage)

    running.pool(work(), len(free), done)
    return missed


def _copy(place: Path) -> None:
    place.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, place / name)


def _plant(place: Path, row: dict[str, Any], stage: int) -> dict[str, Any]:
    """In a fork: the mistake stands in the files themselves, since some tests start processes of their own."""
    own = sorted(p.relative_to(place).as_posix() for p in place.glob(f"tests/pitfalls/test_{row['pitfall']:02}_*.py"))
    tests = own if stage == 0 else [f"tests/{name}" for name in THEN[stage - 1]]
    if not tests:
        return {"status": "survived", "tests": 0}
    _mend(place)  # of the mistake before
    path = place / "src" / "gruppo" / row["file"]
    path.write_text(path.read_text(encoding="utf-8").replace(row["before"], row["after"]), encoding="utf-8")
    sys.path[:] = [str(place / "src"), *(p for p in sys.path if Path(p).resolve() != ROOT / "src")]
    sys.dont_write_bytecode = True
    os.chdir(place)
    return running.in_order(tests)


def _mend(place: Path) -> None:
    """Undo every mistake in a copy."""
    for row in tomllib.loads(PLANTED.read_text(encoding="utf-8"))["mistake"]:
        name = Path("src") / "gruppo" / row["file"]
        shutil.copy2(ROOT / name, place / name)
