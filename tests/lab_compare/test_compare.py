"""`gruppo compare`: the numbers, the files, going on after a stop, and bad input."""

import io
import json
import os
import shlex
import shutil
import signal
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from cli.cli_runs import SMALL, refused, strict_json, trained
from rich.console import Console
from warm import Process, begin, environment

from gruppo.cli import main
from gruppo.lab.compare import processes
from gruppo.lab.compare.compare import Comparison, found_runs, read
from gruppo.lab.compare.processes import Planned, alone
from gruppo.lab.compare.starter import CAN_FORK


@pytest.fixture(autouse=True)
def no_curves(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "picture" not in request.fixturenames:
        monkeypatch.setattr(Comparison, "draw", lambda *_: True)


# ---- runs that are there already


def copied(name: str, **changes: Any) -> None:
    """runs/NAME: runs/a as if it had been made with another seed, task.level or optim.lr."""
    shutil.copytree("runs/a", f"runs/{name}")
    config, summary = Path(f"runs/{name}/config.toml"), Path(f"runs/{name}/summary.json")
    table = tomllib.loads(config.read_text())
    for place, key in ((table, "seed"), (table["task"], "level"), (table["optim"], "lr")):
        place[key] = changes.get(key, place[key])
    config.write_text(tomli_w.dumps(table))
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"seed": table["seed"]}))


def test_folders_of_runs(capsys: pytest.CaptureFixture[str]) -> None:
    trained("a", "steps=1")
    copied("b", seed=1)
    copied("c", lr=0.002)
    copied("d", seed=1, lr=0.002)
    capsys.readouterr()
    assert main(["compare", *(f"runs/{x}" for x in "abcd"), "--json"]) == 0
    table = strict_json(capsys.readouterr().out)
    assert [e["name"] for e in table["entrants"]] == ["grpo", "grpo optim.lr=0.002"]
    assert [[r["seed"] for r in e["runs"]] for e in table["entrants"]] == [[0, 1], [0, 1]]
    assert not list(Path("runs").glob("compare*"))
    assert main(["compare", "runs/a", "runs/c", "save.name=out", "--metric", "reward"]) == 0
    assert "`reward`" in Path("runs/out/compare.md").read_text() and "grpo optim.lr=0.002" in capsys.readouterr().out


def test_folders_that_cannot_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    trained("a", "steps=1")
    copied("again")
    assert "second run of grpo with seed 0" in refused(capsys, "compare", "runs/a", "runs/again")
    copied("other", level="1")
    said = refused(capsys, "compare", "runs/a", "runs/other")
    assert "task.level" in said and "different things" in said
    copied("b", seed=1)
    assert "trained already" in refused(capsys, "compare", "runs/a", "runs/b", "steps=3")
    assert "not both" in refused(capsys, "compare", "runs/a", "grpo")
    Path("runs/b/summary.json").unlink()
    results, left = found_runs([Path("runs/a"), Path("runs/b")])
    assert [r.seed for r in results] == [0] and left == ["runs/b"]
    Path("runs/a/summary.json").unlink()
    assert "no run is finished" in refused(capsys, "compare", "runs/a", "runs/b")


# ---- bad input


@pytest.mark.parametrize(
    ("argv", "words"),
    {
        "grop rloo": ("'grop' is no method and no run folder", "nearest: grpo", "gruppo methods"),
        "grpo ./gone.py:X": ("there is no file",),
        "grpo grpo": ("'grpo' is there twice",),
        "grpo rloo method=dapo": ("method=dapo", "words before the settings"),
        "grpo rloo --task adition": ("Did you mean 'addition'?",),
        "grpo rloo --seeds 0": ("--seeds 0", "no run would be made"),
        "grpo rloo --seeds many": ("--seeds many",),
        "grpo rloo --seeds 1,1": ("a seed is there twice",),
        "grpo rloo --jobs 0": ("--jobs 0",),
        "grpo rloo eval.k=4": ("eval.k=4 with eval.samples=1",),
        "grpo rloo stepz=4": ("nearest: steps",),
        "grpo 'rloo task=chain'": ("task=chain holds for one entrant only",),
        "grpo 'rloo seed=3'": ("seed=3 holds for one entrant only",),
        "grpo 'rloo optim.lrr=3'": ("no 'lrr'",),
        "grpo rloo engine=remote engine.url=http://localhost:1": ("engine=remote does not promise 'weights'",),
        "grpo latr engine=vllm": ("latr: ", "needs an engine that promises 'steer', and engine=vllm does not"),
        "grpo rloo --config gone.toml": ("there is no such file",),
    }.items(),
)
def test_refused(argv: str, words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "compare", *shlex.split(argv))
    for w in words:
        assert w in said, said
    assert not Path("runs").exists()


# ---- making the runs

QUICK = ("steps=1", "--seeds", "2", *(s for s in SMALL if not s.startswith("steps")))


def test_from_methods_to_a_table(in_process: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("runs/compare-grpo-grpo-optim.lr=1e-3-sorting")
    argv = ["compare", "grpo", "grpo optim.lr=1e-3", "--task", "sorting", *QUICK, "seed=4"]
    assert main(argv) == 0
    words = capsys.readouterr().out
    assert len(in_process) == 4 and "Holm" in words and str(folder / "compare.md") in words
    assert "steps 1/4  left " in words
    assert f"4 runs: 2 entrants x 2 seeds, 4 steps in all, one at a time, in {folder}\n" in words
    table = json.loads((folder / "compare.json").read_text())
    assert [e["name"] for e in table["entrants"]] == ["grpo", "grpo optim.lr=1e-3"] and table["seeds"] == [4, 5]
    run = folder / "grpo-optim.lr=1e-3" / "seed-5"
    assert "lr = 0.001" in (run / "config.toml").read_text() and 'name = "sorting"' in (run / "config.toml").read_text()
    assert table["entrants"][1]["runs"][1] == {
        "seed": 5, "value": read(run, "").last("held_out"), "folder": str(run),
    }  # fmt: skip
    assert not list(folder.rglob("*.log"))

    capsys.readouterr()
    assert main([*argv, "--json"]) == 0  # all there: nothing is repeated
    again = strict_json(capsys.readouterr().out)
    assert len(in_process) == 4 and again["entrants"] == table["entrants"] and not again["stopped"]

    longer = [x if x != "2" else "3" for x in argv]  # more seeds: only the new ones
    assert main(longer) == 0
    assert "4 of 6 runs are finished already" in capsys.readouterr().out and len(in_process) == 6

    said = refused(capsys, *argv, "optim.clip_norm=2", "samples=8")
    assert "samples: 4 → 8" in said and "optim.clip_norm: 1.0 → 2.0" in said and "another save.name" in said
    assert len(in_process) == 6


def test_one_entrant_alone_is_told_that_nothing_is_compared(
    in_process: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "grpo", *QUICK]) == 0
    out, err = capsys.readouterr()
    assert "2 runs: 1 entrant x 2 seeds, 2 steps in all" in out and len(in_process) == 2
    assert "warning: grpo is the only entrant, so its seeds are summed up and nothing is compared. Name another" in err


def test_a_comparison_is_said_to_be_one_with_its_runs(
    in_process: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path("runs/compare-grpo-rloo-addition")
    assert main(["compare", "grpo", "rloo", *QUICK]) == 0 and capsys.readouterr()
    assert main(["runs", str(folder)]) == 0
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert head == f"a comparison of 4 runs: read {folder}/compare.md"
    assert {line.split()[0] for line in lines} == {f"{m}/seed-{s}" for m in ("grpo", "rloo") for s in (0, 1)}
    assert main(["runs", str(folder), "--json"]) == 0
    assert len(strict_json(capsys.readouterr().out)) == 4
    (folder / "compare.md").unlink()  # as of one that was stopped
    assert main(["runs", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"4 runs in the folders of {folder}\n")
    assert main(["runs"]) == 0
    words = capsys.readouterr().out
    assert words == f"runs holds no runs itself.\nruns of several entrants in {folder}: gruppo runs {folder}\n"


def test_a_method_of_a_file(in_process: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    own = "from gruppo.methods.grpo import GRPO\nfrom gruppo.stages.credit import LeaveOneOut\n\n\n"
    own += "class Mine(LeaveOneOut):\n    pass\n\n\nMINE = GRPO.but(name='mine', credit=Mine())\n"
    Path("mine.py").write_text(own)
    argv = ["compare", "rloo", "./mine.py:MINE", *QUICK, "--seeds", "1"]
    assert main(argv) == 0 and len(in_process) == 2
    assert main(argv) == 0 and len(in_process) == 2
    Path("mine.py").write_text(own + "# changed\n")
    assert "mine.py: the file has changed" in refused(capsys, *argv)


def test_a_run_that_fails_is_named_and_the_rest_goes_on(
    in_process: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["compare", "grpo", "rloo samples=1", *QUICK]
    assert main(argv) == 1
    out = capsys.readouterr().out
    assert "rloo samples=1, seed 0 failed, the others go on: it broke. Fix it." in out
    folder = Path("runs/compare-grpo-rloo-samples=1-addition")
    table = json.loads((folder / "compare.json").read_text())
    assert [e["n"] for e in table["entrants"]] == [2] and list(table["failed"]) == [
        f"rloo samples=1, seed {s}" for s in (0, 1)
    ]
    assert "Runs that failed" in (folder / "compare.md").read_text()
    in_process.clear()
    assert main(argv) == 1 and len(in_process) == 2  # tried again, the others not


def test_a_run_that_was_stopped_goes_on(in_process: list[list[str]]) -> None:
    argv = ["compare", "grpo", "rloo", *QUICK, "--seeds", "3,7", "save.name=c"]
    assert main(argv) == 0
    run = Path("runs/c/grpo/seed-7")
    (run / "summary.json").unlink()
    in_process.clear()
    assert main(argv) == 0 and in_process == [["train", "--resume", str(run), "--json"]]
    assert (run / "summary.json").is_file()


def test_a_run_has_the_threads_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    from gruppo.cli.overrides import apply
    from gruppo.train.config import RunConfig

    run = Planned("grpo", apply(RunConfig(), ["save.folder=runs", "save.name=a"]), ())
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(processes.os, "cpu_count", lambda: 8)
    assert processes._threads(run, 1) == {} and processes._threads(run, 3) == {"OMP_NUM_THREADS": "2"}
    run.path.mkdir(parents=True)
    (run.path / "environment.json").write_text('{"threads": 5}')
    assert processes._threads(run, 3) == {"OMP_NUM_THREADS": "5"}


def test_progress_on_a_terminal_and_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from gruppo.cli.overrides import apply
    from gruppo.train.config import RunConfig

    runs = [Planned("grpo", apply(RunConfig(), ["steps=4", "save.name=a"]), ())]
    runs[0].path.mkdir(parents=True)
    with processes.Board(runs, quiet=True) as board:
        assert board._line(runs).startswith("steps 0/4  time left not known yet  grpo, seed 0: step 0/4")
    for terminal, wanted in ((True, ("all steps", "grpo, seed 0", "2/4")), (False, ("steps 2/4  left ",))):
        shown = io.StringIO()
        console = Console(file=shown, force_terminal=terminal, width=100)
        monkeypatch.setattr(processes, "Console", lambda **_: console)  # noqa: B023
        (runs[0].path / "metrics.jsonl").write_text("{}\n")  # step 0
        with processes.Board(runs, quiet=False) as board:
            (runs[0].path / "metrics.jsonl").write_text("{}\n{}\n{}\n")
            board.look(runs)
        for words in wanted:
            assert words in shown.getvalue(), (terminal, shown.getvalue())


def test_two_comparisons_do_not_share_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    with alone(Path("runs/c")):
        assert "is at work in runs/c" in refused(capsys, "compare", "grpo", "rloo", *QUICK, "save.name=c")


# ---- in processes of their own


STARTED: list[Process] = []


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    """A test that fails leaves nothing running."""
    yield
    while STARTED:
        process = STARTED.pop()
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)


def start(*argv: str) -> Process:
    STARTED.append(begin(*argv, env=environment()))
    return STARTED[-1]


def rows(run: Path) -> int:
    return (run / "metrics.jsonl").read_bytes().count(b"\n") if (run / "metrics.jsonl").is_file() else 0


def steps_saved(run: Path) -> int:
    return max((int(p.name[5:]) for p in (run / "checkpoints").glob("step-*")), default=0)


LONG = ("compare", "grpo", "rloo", *QUICK, "--seeds", "1", "--jobs", "2", "steps=2000", "save.name=c")
RUNS = [Path(f"runs/c/{name}/seed-0") for name in ("grpo", "rloo")]


def until(process: Process, what: Callable[[], bool]) -> None:
    end = time.monotonic() + 250
    while not what():
        assert process.poll() is None and time.monotonic() < end, Path("said.txt").read_text()
        time.sleep(0.05)


def test_ctrl_c_saves_the_runs_and_names_the_command_to_go_on() -> None:
    process = start(*LONG)
    until(process, lambda: min(map(rows, RUNS)) > 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(200) == 0
    said = Path("said.txt").read_text()
    assert "the same command goes on:  gruppo compare grpo rloo" in said and "Traceback" not in said
    assert all(0 < steps_saved(run) < 2000 and not (run / "summary.json").exists() for run in RUNS)
    assert not any(run.with_suffix(".log").read_text().count("Traceback") for run in RUNS)


@pytest.mark.slow
def test_ctrl_c_twice_stops_at_once_and_what_is_saved_stands() -> None:
    process = start(*LONG)
    until(process, lambda: min(map(steps_saved, RUNS)) >= 20)
    process.send_signal(signal.SIGINT)
    until(process, lambda: "Ctrl-C again" in Path("said.txt").read_text())
    process.send_signal(signal.SIGINT)
    assert process.wait(200) in (0, 130)
    assert "the same command goes on" in Path("said.txt").read_text()
    stopped = list(map(steps_saved, RUNS))
    process = start(*LONG)
    until(process, lambda: all(steps_saved(run) >= was + 20 for run, was in zip(RUNS, stopped, strict=True)))
    process.send_signal(signal.SIGINT)
    assert process.wait(200) == 0


@pytest.mark.slow
def test_a_process_that_dies_is_named() -> None:
    Path("dies.py").write_text("import os\n\n\ndef score(task, text):\n    os.kill(os.getppid(), 9)\n")
    process = start("compare", "grpo", "rloo", *QUICK, "--seeds", "1", "task.reward=./dies.py:score", "save.name=c")
    assert process.wait(120) == 1
    said = Path("said.txt").read_text()
    assert "grpo, seed 0 failed, the others go on" in said and "rloo, seed 0 failed" in said and "Traceback" not in said


@pytest.mark.slow
@pytest.mark.skipif(not CAN_FORK, reason="runs start in a new Python here")
def test_runs_outlive_a_caller_that_is_killed_and_hold_the_lock() -> None:
    process = start(*LONG)
    until(process, lambda: min(map(rows, RUNS)) > 2)
    process.kill()
    process.wait()
    until_end = time.monotonic() + 250
    while len(holders(Path("runs/c/.lock"))) != 2 and time.monotonic() < until_end:  # the starter never held it
        time.sleep(0.05)
    left = holders(Path("runs/c/.lock"))
    try:
        assert len(left) == 2
        before = list(map(rows, RUNS))
        while any(rows(run) <= was for run, was in zip(RUNS, before, strict=True)):
            assert time.monotonic() < until_end, "a run does not go on"
            time.sleep(0.05)
        with pytest.raises(ValueError, match="is at work in runs/c"), alone(Path("runs/c")):
            pass
    finally:
        for pid in left:
            os.kill(pid, signal.SIGKILL)


def holders(path: Path) -> list[int]:
    """The processes that have a file open."""
    found: set[int] = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(link) == str(path.resolve()):
                found.add(int(link.parts[2]))
    return sorted(found)
