"""`gruppo runs`: the runs of a folder, their states and their scores; and which one `--resume` alone means."""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from gruppo.cli.commands import print_json
from gruppo.train.checkpoint import checkpoints, latest_checkpoint, step_of
from gruppo.train.ended import ended, run_table
from gruppo.train.folder import RunFolder
from gruppo.train.lock import held
from gruppo.train.manifest import damage
from gruppo.train.measured import comparable, since
from gruppo.train.progress import change_words, returns_of

PUT_BACK = "gruppo train --resume RUN puts it back from the newest checkpoint."
State = Literal["running", "finished", "stopped", "damaged"]


@dataclass(frozen=True)
class Run:
    """A line of the list. `touched` is when it last wrote a row, in seconds since 1970.

    Of a game, `returns` has what each seat was paid at first and, if it was measured again, at last (None: it never
    acted, or no other did), and there is no score before and after: the mean over seats says nothing, and is 0 in every
    zero-sum game.
    """

    name: str
    path: str
    state: State
    method: str
    task: str
    step: int
    steps: int
    before: float | None
    after: float | None
    touched: float
    returns: dict[str, tuple[float | None, ...]] = field(default_factory=dict[str, tuple[float | None, ...]])
    why: str = ""  # what is damaged
    since: int = 0  # the step at which it measured anew, because its task had changed; before and after are from there


def runs(args: argparse.Namespace) -> int:
    folder = Path(args.folder)
    found, inside = list_runs(folder, args.check), [p.parent for p in sorted(folder.glob("*/*/config.toml"))]
    compared = not found and bool(inside) and is_comparison(folder)
    if compared:
        groups = dict.fromkeys(p.parent for p in inside)
        found = [replace(r, name=f"{g.name}/{r.name}") for g in groups for r in list_runs(g, args.check)]
    if args.json:
        print_json([asdict(r) for r in found])
        return 0
    if compared:
        report, many = folder / "compare.md", f"{len(found)} run{'s' if len(found) > 1 else ''}"
        print(f"a comparison of {many}: read {report}" if report.is_file() else f"{many} in the folders of {folder}")
        print(table(found))
        return 0
    reports = sorted(folder.glob("*/compare.md"))
    unfinished = {p.parents[2] for p in folder.glob("*/*/seed-*/config.toml")} - {r.parent for r in reports}
    none = (
        "no runs itself"
        if inside or reports or unfinished
        else "no runs. `gruppo train` makes one; save.folder says where"
    )
    print(table(found) if found else f"{folder} holds {none}.")
    for group in dict.fromkeys(p.parent for p in inside):
        count = sum(p.parent == group for p in inside)
        print(f"{count} run{'s' if count > 1 else ''} in {group}: gruppo runs {group}")
    for group in sorted(unfinished):
        print(f"runs of several entrants in {group}: gruppo runs {group}")
    for report in reports:
        print(f"a comparison in {report.parent}: read {report}")
    return 0


def is_comparison(folder: Path) -> bool:
    """Whether it is the folder of `gruppo compare`, which has a folder for each entrant with one for each seed."""
    names = [p.parent.name for p in folder.glob("*/*/config.toml")]
    return (folder / "compare.md").is_file() or all(name.startswith("seed-") for name in names)


def list_runs(folder: Path, check: bool = False) -> list[Run]:
    """All runs right inside a folder, the newest first."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, so it holds no runs. Name a folder.")
    paths = {p.parent for p in folder.glob("*/config.toml")}
    paths |= {p.parent for p in folder.glob("*/checkpoints") if checkpoints(p)}  # a run that has lost its config.toml
    found = [described(path, check) for path in paths]
    return sorted(found, key=lambda r: (-r.touched, r.name))


def newest_unfinished(folder: Path) -> Path:
    """The run that `gruppo train --resume` means; a ValueError says which there are instead."""
    found = list_runs(folder)
    for run in found:
        lost = run.method == "?" and not checkpoints(Path(run.path, "checkpoints"))  # perhaps no run at all
        if run.state in ("stopped", "damaged") and not lost:
            return Path(run.path)
    there = "; ".join(f"{r.name} is {r.state}" for r in found[:3]) or "it holds no runs"
    raise ValueError(
        f"--resume: {folder} has no run to go on with ({there}). Name one: --resume RUN; or say where runs are: "
        "save.folder=FOLDER."
    )


# ---- one run


def described(path: Path, check: bool = False) -> Run:
    """A line of the list. Whatever cannot be read makes it a line of a damaged run, and the other runs are listed."""
    run, why, over = RunFolder(path), "", False
    config: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    scores: list[float] = []
    returns: dict[str, tuple[float | None, ...]] = {}
    try:
        if not run["config.toml"].is_file():
            raise ValueError(f"config.toml is missing. {PUT_BACK}")
        config = run_table(path)
        rows = run.metrics()
        known = comparable(rows)
        scores = [float(r["held_out"]) for r in known if r.get("held_out") is not None]
        returns = returns_of(known)
        over = ended(path)
        why = left_damaged(run, rows, check)
    except (ValueError, OSError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        why = str(error)
    files = [p for p in (run["metrics.jsonl"], run["config.toml"]) if p.is_file()] or [path]
    return Run(
        name=path.name,
        path=str(path),
        state="running" if held(path) else "damaged" if why else "finished" if over else "stopped",
        method=str(config.get("method", {}).get("name", "?")),
        task=str(config.get("task", {}).get("name", "?")),
        step=int(rows[-1]["step"]) if rows else 0,
        steps=config.get("steps", 0),
        before=scores[0] if scores and not returns else None,
        after=scores[-1] if len(scores) > 1 and not returns else None,
        touched=max(p.stat().st_mtime for p in files),
        returns=returns,
        why=why,
        since=since(rows),
    )


def left_damaged(run: RunFolder, rows: Sequence[Mapping[str, Any]], check: bool) -> str:
    """What is wrong with what the run left and with its newest checkpoint: by sizes or, slower, by checksums."""
    last = latest_checkpoint(run["checkpoints"])
    left = run["summary.json"].is_file() or run["manifest.json"].is_file()  # a run that goes on has removed both
    for folder in [*([run.path] if left else []), *([last] if last else [])]:
        said = damage(folder, sizes_only=not check)
        if said:
            return said if folder == run.path else f"{folder.name}: {said}"
    done = int(rows[-1]["step"]) if rows else -1
    if last and done < step_of(last):  # a row is written before its checkpoint
        return f"metrics.jsonl has no row of {last.name}. {PUT_BACK}"
    return ""


# ---- words


def table(found: list[Run]) -> str:
    head = ("run", "state", "method", "task", "step", "held-out", "")
    rows = [
        (r.name, r.state, r.method, r.task, f"{r.step}/{r.steps}", _score(r), f"{ago(time.time() - r.touched)} ago")
        for r in found
    ]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)]
    return "\n".join([*lines, *(f"{r.name} is damaged: {r.why}" for r in found if r.state == "damaged")])


def _score(r: Run) -> str:
    shown = change_words((r.before,) if r.after is None else (r.before, r.after))
    if r.returns:
        shown = ", ".join(f"{seat} {change_words(of, sign='+')}" for seat, of in r.returns.items())
    return f"{shown} since step {r.since}" if r.since else shown


def ago(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(int(seconds), 0)} s"
