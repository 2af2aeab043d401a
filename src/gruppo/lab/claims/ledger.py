"""The ledger of the board, claims/ledger.jsonl: a line for every result and every pilot that was written.

A line has what was written (result or pilot), its name, the sha256 of the file's bytes, how the line came about, and
the sha256 of the line before, so that the lines are a chain. It only grows: a file that differs from its newest line
was changed after its runs, and is refused.

    written  by the runs of gruppo claims
    adopted  there already when its line was made: as it stood then, whatever was before
    merged   kept in a merge of two branches that both have lines for it

python -m gruppo.lab.claims.ledger adopt [NAME…]   a line for each file that has none yet
python -m gruppo.lab.claims.ledger merge           after a git conflict in the ledger: both branches, in one chain
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

NAME = "ledger.jsonl"
FOLDERS = {"result": "results", "pilot": "pilots"}
HOW = ("written", "adopted", "merged")
TOOL = "python -m gruppo.lab.claims.ledger"


@dataclass(frozen=True)
class Line:
    what: str
    name: str
    sha256: str  # of the file
    how: str
    before: str  # sha256 of the line before; "" of the first

    @property
    def record(self) -> tuple[str, str]:
        return self.what, self.name

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))


def digest(data: bytes | str) -> str:
    return sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def file_of(folder: Path, what: str, name: str) -> Path:
    return folder / FOLDERS[what] / f"{name}.json"


def chained(records: Sequence[tuple[str, str, str, str]], start: Sequence[Line] = ()) -> list[Line]:
    """Lines (what, name, sha256, how) after those at the start."""
    lines = list(start)
    for what, name, found, how in records:
        lines.append(Line(what, name, found, how, digest(lines[-1].text) if lines else ""))
    return lines


# ---- reading


def lines(folder: Path) -> tuple[Line, ...]:
    """All lines, once their chain is verified; none where there is no ledger."""
    path = folder / NAME
    return verified(path.read_bytes() if path.is_file() else b"", str(path))


@lru_cache(maxsize=8)
def verified(data: bytes, path: str) -> tuple[Line, ...]:
    found: list[Line] = []
    for n, text in enumerate(data.decode("utf-8", "replace").split("\n")[:-1], 1):
        try:
            line = Line(**json.loads(text))
            known = line.what in FOLDERS and line.how in HOW and line.text == text
        except (TypeError, ValueError):
            line, known = None, False
        if line is None or not known:
            raise ValueError(f"{path}, line {n}: {text[:60]!r} is no line of a ledger{_remedy(path)}")
        if line.before != (digest(found[-1].text) if found else ""):
            raise ValueError(f"{path}, line {n}: it does not continue the line before it{_remedy(path)}")
        found.append(line)
    if data and not data.endswith(b"\n"):
        raise ValueError(f"{path}, line {len(found) + 1}: it has no end{_remedy(path)}")
    return tuple(found)


def _remedy(path: str) -> str:
    return (
        f", so that no file of the board can be compared with what was written. Lines are never changed or taken out: "
        f"git checkout {path}; in a merge of two branches that both have new lines, {TOOL} merge."
    )


def read(folder: Path, what: str, name: str) -> bytes | None:
    """The bytes of a result or a pilot, if there is one. Refused unless it is as its newest line says."""
    path = file_of(folder, what, name)
    if not path.is_file():
        return None
    data = path.read_bytes()
    refuse_changed(folder, what, name, data)
    return data


def refuse_changed(folder: Path, what: str, name: str, data: bytes) -> None:
    path, ledger, found = file_of(folder, what, name), folder / NAME, digest(data)
    again = f"gruppo claims {name}{' --pilot' if what == 'pilot' else ''}"
    newest = next((line for line in reversed(lines(folder)) if line.record == (what, name)), None)
    if newest is None:
        raise ValueError(
            f"{path} has no line in {ledger}: nobody could see whether it is as its runs left it. Take both from git; "
            f"or delete it, and run {again}; or, if it is older than the ledger, {TOOL} adopt {name} says that in its "
            "line."
        )
    if newest.sha256 != found:
        raise ValueError(
            f"{path} was changed after its runs: its sha256 is {found[:16]}, and {ledger} says {newest.sha256[:16]}. "
            f"It shows nothing any more. Take it back: git checkout {path}; or delete it, and run {again}."
        )


# ---- writing


def append(folder: Path, what: str, name: str, data: bytes, how: str = "written") -> None:
    """A line for a file that has been written."""
    with _alone(folder):
        _add(folder, [(what, name, digest(data), how)])


def adopt(folder: Path, names: Sequence[str] = ()) -> list[Line]:
    """A line for each file (of these claims, or of all) that has none; returns these lines."""
    with _alone(folder):
        known = {line.record for line in lines(folder)}
        there = [(what, p.stem) for what, sub in FOLDERS.items() for p in sorted((folder / sub).glob("*.json"))]
        new = [r for r in there if r not in known and (not names or r[1] in names)]
        if missing := set(names) - {name for _, name in there}:
            raise ValueError(f"{', '.join(sorted(missing))}: {folder} has no result or pilot of that name to adopt.")
        return _add(folder, [(w, n, digest(file_of(folder, w, n).read_bytes()), "adopted") for w, n in new])


def merged(ours: Sequence[Line], theirs: Sequence[Line], folder: Path) -> list[Line]:
    """Ours, then what they have after the last common line, chained anew, but for what an earlier merge of theirs has
    brought to us; then a line for each file of which the merge kept an older state."""
    common = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
    )
    there, mine = ([(x.what, x.name, x.sha256, x.how) for x in side[common:]] for side in (theirs, ours))
    left = iter(mine)  # `in` goes on where it last found something
    known = next((i for i, record in enumerate(there) if record not in left), len(there))
    new = there[known:]
    every = chained(new, ours)
    newest = {line.record: line.sha256 for line in every}
    for what, name, *_ in dict.fromkeys(new):
        path = file_of(folder, what, name)
        found = digest(path.read_bytes()) if path.is_file() else newest[what, name]
        if found == newest[what, name]:
            continue
        if found not in {line.sha256 for line in every if line.record == (what, name)}:
            raise ValueError(
                f"{path} is neither as one branch nor as the other has it: no runs have left it so. Keep one of the "
                f"two, git checkout --ours or --theirs {path}, and merge the ledger again; then run again what is lost."
            )
        every = chained([(what, name, found, "merged")], every)
        newest[what, name] = found
    return every


def _add(folder: Path, records: Sequence[tuple[str, str, str, str]]) -> list[Line]:
    before = lines(folder)
    new = chained(records, before)[len(before) :]
    with (folder / NAME).open("a", encoding="utf-8", newline="\n") as f:
        f.write("".join(f"{line.text}\n" for line in new))
        f.flush()
        os.fsync(f.fileno())
    return new


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two commands that end at once write one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / NAME).open("a") as f:
        if fcntl is not None:
            fcntl.flock(f, fcntl.LOCK_EX)
        yield


# ---- by hand


def merge(folder: Path) -> list[Line]:
    """Both sides of a git conflict in the ledger, as one chain; returns the lines that are new to ours."""
    sides: list[tuple[Line, ...]] = []
    for stage, side in ((2, "ours"), (3, "theirs")):
        shown = subprocess.run(["git", "show", f":{stage}:./{NAME}"], cwd=folder, capture_output=True)
        if shown.returncode:
            raise ValueError(
                f"git knows no conflict in {folder / NAME}, so there is nothing to merge. Call this in a git merge "
                "that stopped there."
            )
        sides.append(verified(shown.stdout, f"{folder / NAME} ({side})"))
    every = merged(sides[0], sides[1], folder)
    (folder / NAME).write_text("".join(f"{line.text}\n" for line in every), encoding="utf-8", newline="\n")
    return every[len(sides[0]) :]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=TOOL, description="The ledger of the board of claims.")
    parser.add_argument("do", choices=("adopt", "merge"))
    parser.add_argument("names", nargs="*", help="with adopt: only these claims")
    parser.add_argument("--folder", default="claims", metavar="DIR", help="folder of claims (default claims)")
    args = parser.parse_args(words)
    folder = Path(args.folder)
    try:
        new = adopt(folder, args.names) if args.do == "adopt" else merge(folder)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for line in new:
        print(f"{line.how} {line.what} {line.name} {line.sha256[:16]}")
    print(f"{folder / NAME}: {len(new)} new lines, {len(lines(folder))} in all. Commit it.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
