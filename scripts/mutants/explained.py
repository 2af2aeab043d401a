"""The survivors that are explained, in tests/mutants/survivors.toml: one by one, or a class of them by a rule."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache

from making import PACKAGE, PARTS, ROOT, Mutant, files

SURVIVORS = ROOT / "tests" / "mutants" / "survivors.toml"
REASONS = ("equivalent", "contract", "speed", "device", "gap")
ONE = {"file", "text", "before", "after", "reason", "why"}
RULE = {"files", "text", "before", "after", "lost", "reason", "why"}


@dataclass(frozen=True)
class Entry:
    """A survivor (all fields exactly) or a rule (regular expressions over whole fields; those left out are free).

    text  the line of source, without its indentation: so an entry goes with its code, and not with a line number
    lost  of an argument that was left out: the argument
    """

    fields: tuple[tuple[str, str], ...]
    rule: bool

    @property
    def said(self) -> dict[str, str]:
        return dict(self.fields)

    def __str__(self) -> str:
        said = self.said
        where = said.get("files", "*") if self.rule else said["file"]
        what = "  ".join(f"{k}={said[k]}" for k in ("text", "before", "after", "lost") if k in said and self.rule)
        return f"{where}  {what or said['before'] + ' → ' + said['after']}"

    def covers(self, m: Mutant) -> bool:
        said, has = self.said, seen(m)
        if not self.rule:
            return all(has[k] == said[k] for k in ("file", "text", "before", "after"))
        free = fnmatch(m.file, said.get("files", "*"))
        return free and all(
            re.fullmatch(said[k], has[k], re.S) for k in ("text", "before", "after", "lost") if k in said
        )


def seen(m: Mutant) -> dict[str, str]:
    """What an entry may speak of."""
    return {"file": m.file, "text": text(m), "before": m.before, "after": m.after, "lost": lost(m.before, m.after)}


@lru_cache
def _lines(file: str) -> list[str]:
    return (PACKAGE / file).read_text(encoding="utf-8").splitlines()


def text(m: Mutant) -> str:
    return _lines(m.file)[m.line - 1].strip()


def lost(before: str, after: str) -> str:
    """What stands in `before` and not in `after`, if that is the only difference: an argument left out.

    Of `f(dim=1, dtype=x)` and `f(dtype=x)` letters alone cannot tell whether `dim=1, ` or `im=1, d` was lost: the piece
    that begins where an argument begins.
    """
    n = min(len(before), len(after))
    head = next((i for i in range(n) if before[i] != after[i]), n)
    size = len(before) - len(after)
    for i in range(head, -1, -1):
        if size <= 0 or before[:i] + before[i + size :] != after:
            break
        if not i or before[:i].endswith(("(", ", ", "( ")):
            return before[i : i + size].strip(" ,")
    return ""


def entries(source: str | None = None) -> list[Entry]:
    """The list, each entry checked."""
    if source is None:
        source = SURVIVORS.read_text(encoding="utf-8") if SURVIVORS.exists() else ""
    table, out = tomllib.loads(source), list[Entry]()
    for kind, known in (("rule", RULE), ("survivor", ONE)):
        for row in table.get(kind, []):
            missing = {"reason", "why"} if kind == "rule" else ONE
            wrong = sorted((set(row) - known) | (missing - set(row)))
            if (
                wrong
                or row["reason"] not in REASONS
                or (kind == "rule" and not set(row) & {"text", "before", "after", "lost"})
            ):
                raise ValueError(
                    f"survivors.toml: [[{kind}]] {row} cannot be used ({', '.join(wrong) or 'look at its reason'}). "
                    f"It has {', '.join(sorted(known))}; a reason is one of {', '.join(REASONS)}."
                )
            out.append(Entry(tuple(sorted(row.items())), kind == "rule"))
    return out


def sort(alive: Sequence[Mutant], table: Sequence[Entry]) -> tuple[dict[Entry, list[Mutant]], list[Mutant]]:
    """({entry: the survivors that it explains}, those that none does). The first entry that covers one has it."""
    covered: dict[Entry, list[Mutant]] = {e: [] for e in table}
    open_ones: list[Mutant] = []
    for m in alive:
        mine = next((e for e in table if e.covers(m)), None)
        (open_ones if mine is None else covered[mine]).append(m)
    return covered, open_ones


def idle(covered: dict[Entry, list[Mutant]], read: set[str]) -> list[Entry]:
    """Entries that explain nothing any more, where all of their files were read: the code, or the gap, has gone."""
    every = {path.relative_to(PACKAGE).as_posix() for path in files(list(PARTS))}

    def here(e: Entry) -> set[str]:
        said = e.said
        return {f for f in every if fnmatch(f, said.get("files", "*"))} if e.rule else {said["file"]}

    return [e for e, mine in covered.items() if not mine and here(e) <= read]
