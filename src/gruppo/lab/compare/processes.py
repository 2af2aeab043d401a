"""Many runs of `gruppo train`, each in its own process, some at a time; finished runs are not repeated.

A run that fails does not affect the others. Ctrl-C once finishes and saves the current steps; twice stops at once. The
same command then continues where it stopped.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gruppo.engines.base import CAN_PROMISE
from gruppo.lab.compare.compare import Result, finished, read
from gruppo.lab.compare.stages import counted_on
from gruppo.lab.compare.starter import CAN_FORK, WarmRun, here, starter
from gruppo.stages.check import refuse_engine
from gruppo.stages.writers import with_companions
from gruppo.train.config import RunConfig
from gruppo.train.folder import RunFolder
from gruppo.train.measured import result_words
from gruppo.train.stop import Stop

Process = subprocess.Popen[bytes] | WarmRun

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from gruppo.cli import main; sys.exit(main())"
_LOOK = 0.2  # seconds between checks of the processes
_PATIENCE = 10.0  # seconds that a process has to end after a signal


@dataclass(frozen=True, eq=False)
class Planned:
    """One run: the entrant, its configuration, the arguments of `gruppo train`, and the stages before it."""

    entrant: str
    config: RunConfig
    typed: tuple[str, ...]
    earlier: "tuple[Planned, ...]" = ()

    @property
    def stages(self) -> "tuple[Planned, ...]":
        return (*self.earlier, self)

    def result(self) -> Result:
        """What a finished run says, with the steps and the sampled tokens of the stages before it."""
        return counted_on([read(e.path, self.entrant) for e in self.earlier], read(self.path, self.entrant))

    @property
    def path(self) -> Path:
        return Path(self.config.save.folder) / self.config.save.name

    @property
    def name(self) -> str:
        return f"{self.entrant}, seed {self.config.seed}"

    @property
    def log(self) -> Path:
        return self.path.with_suffix(".log")

    def steps_done(self) -> int:
        with suppress(OSError):
            return max(RunFolder(self.path)["metrics.jsonl"].read_bytes().count(b"\n") - 1, 0)  # row 0: before step 1
        return 0

    def words(self) -> list[str]:
        """The command that starts the run, or resumes it."""
        begun = RunFolder(self.path)["config.toml"].is_file()
        return ["train", *(("--resume", str(self.path)) if begun else self.typed), "--json"]


def refuse_other_settings(planned: Sequence[Planned], folder: Path) -> None:
    """Existing runs must have the settings that are asked for now, except for folder, threads and versions.

    And a stage that is finished must still have what the next one begins from.
    """
    _refuse_damaged(planned)
    wrong: dict[str, list[str]] = {}
    for run in _all_stages(planned):
        if not RunFolder(run.path)["config.toml"].is_file():
            continue
        free = ("save.", "torch:", "gruppo:", *_free_in_stage(run))
        for change in RunFolder(run.path).changes_to(run.config):
            if not change.startswith(free):
                wrong.setdefault(change, []).append(f"{run.path}")
    if wrong:
        listed = "\n".join(f"  {change}   ({runs[0]}{' …' if len(runs) > 1 else ''})" for change, runs in wrong.items())
        raise ValueError(
            f"{folder} holds runs with other settings, so their numbers could not stand in one table:\n{listed}\n"
            "Take these settings back to go on with it, or choose another save.name to start again."
        )


def _refuse_damaged(planned: Sequence[Planned]) -> None:
    """A stage that is finished must still have the policy that the next one begins from, unless that is finished."""
    for run in _all_stages(planned):
        for before in () if finished(run.path) else run.earlier[-1:]:
            if finished(before.path) and (said := RunFolder(before.path).damage()):
                raise ValueError(
                    f"{before.path}: {said}, so {run.name} cannot begin from its policy. Remove that folder, and "
                    f"{run.path} if it is there, and the same command makes them again."
                )


def _free_in_stage(run: Planned) -> tuple[str, ...]:
    """What may differ besides in a later stage. The weights that it begins from are compared by their hash if they are
    there; where they lie does not matter."""
    if not run.earlier:
        return ()
    before = run.earlier[-1].path
    there = finished(before) and not RunFolder(before).damage()
    return ("model.name:",) if there else ("model.name:", "model (policy):")


def _all_stages(planned: Sequence[Planned]) -> list[Planned]:
    return [stage for run in planned for stage in run.stages]


@contextmanager
def alone(folder: Path) -> Iterator[tuple[int, ...]]:
    """Lock the folder. The runs inherit the lock, so it is held until the last of them has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows
        yield ()
        return
    with (folder / ".lock").open("w") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"another comparison, or a run of one that was killed, is at work in {folder}: two would mix. Wait for "
                "it, or choose another save.name."
            ) from None
        yield (f.fileno(),)


class Board:
    """Progress of all runs: bars on a terminal, a line every few seconds elsewhere."""

    def __init__(self, planned: Sequence[Planned], quiet: bool) -> None:
        self.planned, self.quiet = planned, quiet
        self.console = Console(highlight=False)
        self.total = sum(p.config.steps for p in planned)
        self.first, self._begun, self._next = self.done, time.perf_counter(), 0.0
        self.bars: Progress | None = None
        self._bar: dict[str, TaskID] = {}

    @property
    def done(self) -> int:
        return sum(min(p.steps_done(), p.config.steps) for p in self.planned)

    def __enter__(self) -> "Board":
        if self.console.is_terminal and not self.quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bars = Progress(*columns, console=self.console)
            self._bar[""] = self.bars.add_task("all steps", total=self.total, completed=self.first)
            self.bars.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.bars is not None:
            self.bars.stop()

    def say(self, text: str) -> None:
        if not self.quiet:
            self.console.print(text, markup=False, soft_wrap=True)
            sys.stdout.flush()

    def look(self, running: Sequence[Planned]) -> None:
        if self.bars is not None:
            self._draw(self.bars, running)
        elif not self.quiet and time.perf_counter() >= self._next:
            self._next = time.perf_counter() + max(5.0, (time.perf_counter() - self._begun) / 20)
            self.say(self._line(running))

    def _draw(self, bars: Progress, running: Sequence[Planned]) -> None:
        bars.update(self._bar[""], completed=self.done)
        for run in running:
            if run.name not in self._bar:
                self._bar[run.name] = bars.add_task(run.name, total=run.config.steps)
            bars.update(self._bar[run.name], completed=run.steps_done())
        for name in set(self._bar) - {"", *(r.name for r in running)}:
            bars.remove_task(self._bar.pop(name))

    def _line(self, running: Sequence[Planned]) -> str:
        done = self.done
        spent = time.perf_counter() - self._begun
        left = "time left not known yet"
        if done > self.first:
            left = f"left {spent / (done - self.first) * (self.total - done):.0f} s"
        at = "; ".join(f"{r.name}: step {r.steps_done()}/{r.config.steps}" for r in running)
        return f"steps {done}/{self.total}  {left}  {at}"


class Noted(Stop):
    """Also defers the second Ctrl-C to the loop: an exception while a run starts would lose that run."""

    again = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked and not self.again:
            self.again = True
        else:
            super()._on_signal(number, frame)


def run_all(planned: Sequence[Planned], folder: Path, jobs: int = 1, quiet: bool = False) -> dict[str, str]:
    """Make all runs that are not finished. Returns {run: reason} for those that failed; the others go on."""
    every = _all_stages(planned)
    todo = [run for run in every if not finished(run.path)]
    for run in todo:  # once, and not by every run in its own log
        engine = run.config.engine.name
        refuse_engine(with_companions(run.config.method), engine, CAN_PROMISE[engine])
    failed: dict[str, str] = {}
    running: dict[Planned, Process] = {}
    interrupt = Noted()
    with alone(folder) as lock, Board(every, quiet) as board, interrupt:
        board.say(announced(planned, folder, jobs))
        if len(todo) < len(every):
            board.say(f"{len(every) - len(todo)} of {len(every)} runs are finished already in {folder}")
        signalled = False
        try:
            while running or (todo and not interrupt.asked):
                while len(running) < jobs and not interrupt.asked and (run := _next(todo, running)):
                    if (process := _started(run, jobs, lock)) is None:
                        break
                    todo.remove(run)
                    running[run] = process
                if interrupt.again:
                    raise KeyboardInterrupt
                if interrupt.asked and not signalled:
                    signalled = _interrupt(running)
                for run, process in list(running.items()):
                    if (code := process.poll()) is not None:
                        del running[run]
                        _settle(run, code, bool(interrupt.asked), failed, board)
                        todo = [t for t in todo if run not in t.earlier or run.name not in failed]
                board.look(list(running))
                time.sleep(_LOOK)
        finally:
            _end(running)
    return failed


def announced(planned: Sequence[Planned], folder: Path, jobs: int) -> str:
    """How much is about to be made: `10 runs: 2 entrants x 5 seeds, 600 steps in all, one at a time, in FOLDER`."""
    rate = "one" if jobs == 1 else str(jobs)
    every, entrants = _all_stages(planned), {run.entrant for run in planned}
    seeds = len(planned) // max(len(entrants), 1)
    stages = f", {len(every)} with their stages" if len(every) > len(planned) else ""
    return (
        f"{_many(len(planned), 'run')}: {_many(len(entrants), 'entrant')} x {_many(seeds, 'seed')}{stages}, "
        f"{sum(run.config.steps for run in every):,} steps in all, {rate} at a time, in {folder}"
    )


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _next(todo: Sequence[Planned], running: Collection[Planned]) -> Planned | None:
    """The first run that waits for no earlier stage."""
    return next((run for run in todo if not any(e in todo or e in running for e in run.earlier)), None)


def _started(run: Planned, jobs: int, lock: tuple[int, ...]) -> Process | None:
    """The process of the run: forked if possible, else a new Python. None: the starter is not ready yet."""
    environment = {**os.environ, **_threads(run, jobs)}
    warm = starter(environment) if CAN_FORK else None
    if warm is not None and not warm.settled():
        return None
    run.log.parent.mkdir(parents=True, exist_ok=True)
    with run.log.open("wb") as log:
        process = warm.start(run.words(), log, lock) if warm is not None else None
        return process or _plain(run, log, environment, lock)


def _plain(
    run: Planned, log: IO[bytes], environment: dict[str, str], lock: tuple[int, ...]
) -> "subprocess.Popen[bytes]":
    # In its own session: Ctrl-C reaches only this process, which decides.
    return subprocess.Popen(
        [sys.executable, "-c", _BOOT, json.dumps(here()), *run.words()],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        pass_fds=lock,
    )


def _threads(run: Planned, jobs: int) -> dict[str, str]:
    """Divide the cores among the jobs; a resumed run keeps its number of threads."""
    begun = RunFolder(run.path)["environment.json"]
    if begun.is_file():
        return {"OMP_NUM_THREADS": str(json.loads(begun.read_text())["threads"])}
    if jobs == 1 or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max((os.cpu_count() or 1) // jobs, 1))}


def _settle(run: Planned, code: int, stopping: bool, failed: dict[str, str], board: Board) -> None:
    """Report a run that has ended."""
    if finished(run.path):
        summary = json.loads(RunFolder(run.path)["summary.json"].read_text())
        board.say(f"{run.name}: {result_words(summary)}, {summary['seconds']:.0f} s")
        run.log.unlink(missing_ok=True)
    elif not stopping:
        failed[run.name] = f"{_last_words(run.log, code)} (all of it: {run.log})"
        board.say(f"{run.name} failed, the others go on: {failed[run.name]}")


def _last_words(log: Path, code: int) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    ours = next((line for line in lines if line.startswith("gruppo: ")), None)
    return (ours or (lines[-1] if lines else f"exit code {code}")).removeprefix("gruppo: ")


def _interrupt(running: dict[Planned, Process]) -> bool:
    for process in running.values():
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
    return True


def _end(running: dict[Planned, Process]) -> None:
    """After an error or a second Ctrl-C: interrupt the runs twice, then kill those that are left."""
    _interrupt(running)
    _interrupt(running)
    until = time.monotonic() + _PATIENCE
    for process in running.values():
        try:
            process.wait(max(until - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
