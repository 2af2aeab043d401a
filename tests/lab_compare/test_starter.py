"""Runs that are forked from a warm process: like runs in a Python of their own, only sooner."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from train.train_runs import SMALL, contents, metrics, train, wait_for

from gruppo.cli.overrides import apply
from gruppo.lab.compare import processes, starter
from gruppo.lab.compare.processes import Noted, Planned, alone
from gruppo.lab.compare.starter import Starter, WarmRun, fit_to_fork, here
from gruppo.train.config import RunConfig

pytestmark = pytest.mark.skipif(not starter.CAN_FORK, reason="runs start in a new Python here")

# A starter that imports next to nothing, and whose runs say what they were told and wait.
LIGHT = (
    "import json, sys, time; sys.path[:] = json.loads(sys.argv.pop(1)); from gruppo.lab.compare import starter; "
    "starter.warm_up = lambda: None; starter.serve(int(sys.argv.pop(1))); print(sys.argv[1:], flush=True); "
    "time.sleep(600)"
)


def settled(environment: dict[str, str]) -> Starter:
    found = Starter({**os.environ, **environment}, here())
    assert not found.settled()  # it is not waited for: the caller has a screen to keep
    wait_for(found.settled)
    return found


@pytest.fixture(scope="module")
def warm() -> Iterator[Starter]:
    found = settled({"OMP_NUM_THREADS": "2", "PYTHONPROFILEIMPORTTIME": "1"})
    assert found.ready and not found.gone
    yield found
    found.close()
    assert found._process.returncode == 0


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> Iterator[Starter]:
    monkeypatch.setattr(starter, "_BOOT", LIGHT)
    found = settled({})
    yield found
    found.close()


def started(by: Starter, *words: str, lock: Sequence[int] = ()) -> WarmRun:
    with Path("log.txt").open("wb") as log:
        run = by.start(words, log, lock)
    assert run is not None
    return run


def words(run: str, *settings: str) -> tuple[str, ...]:
    return ("train", *SMALL, f"save.name={run}", *settings)


# ---- a run


def test_the_same_weights_and_next_to_no_imports(warm: Starter) -> None:
    assert train("plain", "steps=2") == 0
    assert started(warm, *words("forked", "steps=2")).wait(120) == 0
    assert metrics("forked") == metrics("plain")
    assert contents(Path("runs/forked/policy")) == contents(Path("runs/plain/policy"))
    imported = re.findall(r"^import time:.*\| +(\S+)$", Path("log.txt").read_text(), re.M)
    assert "pyarrow" in imported  # its allocator starts a thread, so it is not there before the fork
    ours = r"gruppo\.(train|methods|stages|pieces|cli|data)"  # the scorer's process has this log too, and tasks
    heavy = [n for n in imported if re.match(rf"{ours}|sympy|matplotlib\.|torch\.(_dynamo|fx|nn)|transformers", n)]
    assert not heavy, f"every run imports {heavy[:5]}: add what brings them to WARM"


def test_code_log_and_folder_of_a_refusal(warm: Starter) -> None:
    run = started(warm, *words("x", "stepz=3"))
    assert run.wait(200) == 2 and run.poll() == 2 == run.returncode
    assert "\ngruppo: " in "\n" + Path("log.txt").read_text() and "nearest: steps" in Path("log.txt").read_text()
    run.send_signal(signal.SIGINT)  # it is over: its number may be another's by now, who gets nothing
    assert started(warm, "train", "no/such/file", "--config", "gone.toml").wait(200) == 2


def test_session_threads_and_lock_of_a_run(warm: Starter) -> None:
    with alone(Path("runs/c")) as lock:
        run = started(warm, *(w for w in words("x", "steps=100000") if w != "threads=1"), lock=lock)
    with pytest.raises(ValueError, match="is at work in runs/c"), alone(Path("runs/c")):
        pass
    with pytest.raises(subprocess.TimeoutExpired):
        run.wait(0.01)
    wait_for(lambda: os.getsid(run.pid) == run.pid)  # a fork has that of the starter until it sets its own
    assert run.pid != warm._process.pid
    wait_for(lambda: Path("runs/x/metrics.jsonl").is_file())
    assert json.loads(Path("runs/x/environment.json").read_text())["threads"] == 2
    other = started(warm, *words("y", "steps=1"))
    run.kill()
    assert run.wait(200) == -signal.SIGKILL
    with alone(Path("runs/c")):  # the starter does not keep it
        pass
    assert other.wait(120) == 0


def test_ctrl_c_saves_the_step(warm: Starter) -> None:
    run = started(warm, *words("x", "steps=100000"))
    wait_for(lambda: len(metrics("x")) > 2)
    run.send_signal(signal.SIGINT)
    assert run.wait(200) == 0 and "finishing this step" in Path("log.txt").read_text()
    assert list(Path("runs/x/checkpoints").glob("step-*")) and not Path("runs/x/summary.json").exists()


def test_words_and_folder_are_those_of_the_call(
    light: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path / "later")
    strange = ("train", "a b", 'c"d', "é\n")
    run = started(light, *strange)
    wait_for(lambda: Path("log.txt").read_text().endswith("\n"))  # the words and the end of the line are two writes
    assert Path("log.txt").read_text() == f"{list(strange)}\n"
    assert os.readlink(f"/proc/{run.pid}/cwd") == str(tmp_path / "later")
    run.kill()
    assert run.wait(200) == -signal.SIGKILL


# ---- when it cannot be


def test_without_its_starter_a_run_is_ended(light: Starter) -> None:
    run = started(light, "train")
    assert run.poll() is None
    light._process.kill()
    light._process.wait()
    assert run.poll() == -signal.SIGKILL and light.gone
    wait_for(lambda: not alive(run.pid))
    with Path("log.txt").open("wb") as log:
        assert light.start(("train",), log, ()) is None


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_the_starter_ends_with_its_caller(light: Starter) -> None:
    run = started(light, "train")
    light.close()
    assert light._process.returncode == 0 and alive(run.pid)  # as runs in a Python of their own would go on
    os.kill(run.pid, signal.SIGKILL)


@pytest.mark.parametrize("broken", ["starter.fit_to_fork = lambda: False", "import no_such_module"])
def test_a_starter_that_cannot_fork_is_given_up(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter, "_BOOT", LIGHT.replace("starter.warm_up", f"{broken}; starter.warm_up"))
    found = settled({})
    assert found.gone and not found.ready
    assert plain_start(monkeypatch, lambda environment: found) == ["plain"]


def test_without_fork_a_run_has_a_new_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "CAN_FORK", False)
    assert plain_start(monkeypatch, lambda environment: pytest.fail("there is no starter")) == ["plain"]


def plain_start(monkeypatch: pytest.MonkeyPatch, starter_of: Callable[[Any], Any]) -> list[Any]:
    run = Planned("grpo", apply(RunConfig(), ["save.folder=runs", "save.name=a"]), ("steps=1",))
    monkeypatch.setattr(processes, "starter", starter_of)
    monkeypatch.setattr(processes, "_plain", lambda *_: "plain")
    return [processes._started(run, 1, ())]


def test_a_new_python_makes_the_run() -> None:
    run = Planned("grpo", apply(RunConfig(), ["save.folder=runs", "save.name=a"]), ("--stepz",))
    with Path("log.txt").open("wb") as log:
        process = processes._plain(run, log, dict(os.environ), ())
    assert process.wait(120) == 2 and "--stepz: settings are written without dashes" in Path("log.txt").read_text()


def test_threads_and_drivers_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert fit_to_fork()
    with (tmp_path / "nvidia0").open("w"):
        monkeypatch.setattr(starter, "_DRIVERS", (str(tmp_path / "nvidia"),))
        assert not fit_to_fork()
    assert fit_to_fork()
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert not fit_to_fork()


def test_one_starter_for_one_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, str]] = []
    monkeypatch.setattr(starter, "Starter", lambda environment, path: made.append(environment) or len(made))
    starter._starter.cache_clear()
    try:
        one = starter.starter({"OMP_NUM_THREADS": "1"})
        assert starter.starter({"OMP_NUM_THREADS": "1"}) == one != starter.starter({"OMP_NUM_THREADS": "2"})
        monkeypatch.setattr(sys, "path", [*sys.path, "more"])
        assert starter.starter({"OMP_NUM_THREADS": "1"}) != one
    finally:
        starter._starter.cache_clear()


# ---- Ctrl-C


def test_the_second_ctrl_c_is_noted_and_the_third_raises() -> None:
    with Noted() as interrupt:
        assert not interrupt.asked
        signal.raise_signal(signal.SIGINT)
        assert interrupt.asked and not Noted.again
        signal.raise_signal(signal.SIGINT)
        assert isinstance(interrupt, Noted) and interrupt.again
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_second_ctrl_c_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It falls into a start, which is finished all the same: that run is told too."""
    told: list[int] = []

    class Stubborn:
        def poll(self) -> int | None:
            return -9 if len(told) > 1 else None

        def send_signal(self, number: int) -> None:
            told.append(number)

        def wait(self, timeout: float) -> int:
            return -9

    def start(run: Planned, jobs: int, lock: tuple[int, ...]) -> Stubborn:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return Stubborn()

    monkeypatch.setattr(processes, "_started", start)
    run = Planned("grpo", apply(RunConfig(), ["save.folder=runs", "save.name=a"]), ("steps=1",))
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        processes.run_all([run], Path("runs"), quiet=True)
    assert told == [signal.SIGINT, signal.SIGINT] and time.monotonic() - begun < 60
