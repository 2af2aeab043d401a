"""What is known so far, in .mutants/: which test touches which line, and what became of each mutant."""

import hashlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import running
from making import PACKAGE, ROOT, Mutant

FOLDER = ROOT / ".mutants"
THOROUGH = 1000.0  # CPU seconds: a look that leaves nothing out
# Where the tests of a folder are: these come first, so that the first look finds more.
OWN = {
    "data": ("data",),
    "stages": ("stages",),
    "pieces": ("golden", "methods"),
    "methods": ("methods", "golden", "stages", "registry"),
}
LAW = re.compile(r"tests/methods/test_(\w+)\.py::test_laws\[")
BROAD = ("grpo", "ppo", "dpo")  # between them they use most pieces


class Session:
    def __init__(self, fresh: bool = False) -> None:
        FOLDER.mkdir(exist_ok=True)
        self._log, self._tests = FOLDER / "results.jsonl", FOLDER / "tests.json"
        if fresh:
            self._log.unlink(missing_ok=True)
        self.results: dict[str, dict[str, Any]] = {}
        self.read()

    def read(self) -> None:
        if self._log.exists():
            for row in map(json.loads, self._log.read_text(encoding="utf-8").splitlines()):
                self.results[row["name"]] = row  # the last word counts

    def add(self, m: Mutant, result: dict[str, Any]) -> None:
        row = {"name": m.name, "time": time.time(), **result}
        self.results[m.name] = row
        with self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")

    def tests(self) -> dict[str, Any]:
        return json.loads(self._tests.read_text(encoding="utf-8"))["tests"]

    def measure(self, say: Callable[[str], None]) -> None:
        """Run the tests that are new, or whose file or lines have changed, and see what they touch."""
        old = (
            json.loads(self._tests.read_text(encoding="utf-8")) if self._tests.exists() else {"tests": {}, "files": {}}
        )
        now = {p.relative_to(ROOT).as_posix(): _hash(p) for d in (PACKAGE, ROOT / "tests") for p in d.rglob("*.py")}
        if old["files"] == now and set(running.TESTS) <= set(old.get("folders", [])):
            return
        same = {f for f, h in now.items() if old["files"].get(f) == h}
        known = {
            name: t
            for name, t in old["tests"].items()
            if name.split("::")[0] in same and all(f"src/gruppo/{f}" in same for f in t["lines"])
        }
        found = running.measure(known, say)
        for t in found["new"].values():
            t["since"] = time.time()
        here = set(found["here"])
        away = {name for name in known if not name.startswith(tuple(f"tests/{t}" for t in running.TESTS))}
        tests = {name: t for name, t in (known | found["new"]).items() if name in here | away}
        self._tests.write_text(json.dumps({"tests": tests, "files": now, "folders": running.TESTS}), encoding="utf-8")
        say(f"{len(tests)} tests, {sum(t['seconds'] for t in tests.values()):.0f} s of work without a mutant")


def _hash(path: Any) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


class Tests:
    """Chooses the tests for a mutant."""

    def __init__(self, tests: dict[str, Any]) -> None:
        self.seconds = {name: t["seconds"] for name, t in tests.items()}
        self._since = {name: t.get("since", 0.0) for name, t in tests.items()}
        self._by_line: dict[tuple[str, int], set[str]] = {}
        self._by_file: dict[str, set[str]] = {}
        for name, t in tests.items():
            for file, lines in t["lines"].items():
                self._by_file.setdefault(file, set()).add(name)
                for line in lines:
                    self._by_line.setdefault((file, line), set()).add(name)
        self._records = {name for name in tests if "/registry/" in name}

    def choose(self, m: Mutant, budget: float, since: float = 0.0) -> list[str]:
        """Tests that touch the mutated lines; where none does (a record, a default, what runs at import), the file.

        Those of the mutant's own folder first; there the quickest of each test file, then the second quickest of each,
        and so on: many kinds of test early. Laws last. `since`: only tests that are newer.
        """
        lines = range(m.line, m.last + 1)
        found = set[str]().union(*(self._by_line.get((m.file, n), set[str]()) for n in lines))
        if not m.live or (not found and budget > THOROUGH):
            found = found | self._by_file.get(m.file, set[str]()) | self._records
        found -= _other_laws(m, found)
        found = {t for t in found if self._since[t] >= since}
        by_file: dict[str, list[str]] = {}
        for name in sorted(found, key=lambda t: (self.seconds[t], t)):
            by_file.setdefault(name.split("::")[0], []).append(name)
        own = tuple(f"tests/{folder}/" for folder in OWN.get(m.file.split("/")[0], ()))
        turns = sorted(
            (bool(LAW.match(t)), not t.startswith(own), i, self.seconds[t], t)
            for mine in by_file.values()
            for i, t in enumerate(mine)
        )
        out, spent = list[str](), 0.0
        for *_, seconds, name in turns:
            if out and spent + seconds > budget:
                continue
            out.append(name)
            spent += seconds
        return out


def _other_laws(m: Mutant, found: set[str]) -> set[str]:
    """Laws to leave out: each touches nearly everything, so those of one method, or of three, have to do."""
    of = {t: law[1] for t in found if (law := LAW.match(t))}
    mine = Path(m.file).stem if m.file.startswith("methods/") else ""
    by_use = sorted(set(of.values()), key=lambda name: (name != mine, name not in BROAD, name))
    kept = by_use[: 1 if mine in by_use else 3]
    return {t for t, name in of.items() if name not in kept}
