"""Small runs as a user makes them, in this process or in one that may die, and what must be equal after a resume."""

import atexit
import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import time
import weakref
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest
from warm import MAIN, Process, begin, environment

from gruppo.cli import main
from gruppo.data.store import load_with_beside, save_episodes

SMALL = ("prompts=4", "samples=4", "eval.prompts=8", "eval.every=4", "save.episodes_every=4")
SMALL += ("save.tensorboard=no", "threads=1")

# A reward that can take its time: then a step lasts long enough to be hit in its middle.
SLOW_REWARD = """
import os, time

def score(task, text):
    time.sleep(float(os.environ.get("SECONDS_EACH", 0)))
    for _ in range(6000):  # at most two minutes
        if not held():
            break
        time.sleep(0.02)
    return float(text.strip() == task.answer)

def held():
    try:
        return os.path.exists(open("hold").read())
    except FileNotFoundError:
        return False
"""
SLOWLY = ("task.reward=./reward.py:score", "task.seconds=600", "eval.prompts=2")


def gruppo(*argv: str) -> int:
    """The command line, in this process."""
    return main(list(argv))


def train(name: str, *settings: str) -> int:
    return gruppo("train", *SMALL, f"save.name={name}", *settings)


def interrupted_while_freed(*_: Any) -> int:
    """Ends with a Ctrl-C while C code frees what it had: Python sees that at the first call behind it."""
    trip = ctypes.pythonapi.PyErr_SetInterrupt
    trip.argtypes = (ctypes.py_object,)

    class Everything: ...

    everything = Everything()
    everything_gone.append(weakref.ref(everything, trip))
    return 0


everything_gone = list[Any]()


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The words of a command that ends with 2 and no traceback."""
    capsys.readouterr()
    assert gruppo(*argv) == 2
    words = capsys.readouterr().err
    assert "Traceback" not in words
    return words


@lru_cache
def _straight(settings: tuple[str, ...], reward: str) -> Path:
    """A run that nothing happens to, made once and kept for the tests that compare with it."""
    before, folder = Path.cwd(), Path(mkdtemp(prefix="gruppo-straight-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.chdir(folder)
    try:
        if reward:
            Path("reward.py").write_text(reward)
        assert train("a", *settings) == 0
    finally:
        os.chdir(before)
    return folder / "runs" / "a"


def straight(*settings: str, reward: str = "") -> None:
    """runs/a: the run with these settings from start to end."""
    shutil.copytree(_straight(settings, reward), "runs/a")


def start(*argv: str, code: str = MAIN, seconds_each: float = 0, forked: bool = True) -> Process:
    """The command line in a process of its own; its words go to said.txt."""
    Path("reward.py").write_text(SLOW_REWARD)
    return begin(*argv, env=environment(SECONDS_EACH=str(seconds_each)), code=code, forked=forked)


def hold_from(path: Path) -> None:
    """Scoring waits as soon as this path exists, until `release`: no step is over before the test says so."""
    Path("hold").write_text(str(path))


def release() -> None:
    Path("hold").unlink()


def said() -> str:
    return Path("said.txt").read_text()


def wait_for(what: Callable[[], Any], process: Process | None = None, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert process is None or process.poll() is None, f"ended too early, {process.returncode}: {said()}"
        assert time.monotonic() < end, f"waited {seconds} s: {said()}"
        time.sleep(0.005)


def kill(process: Process) -> None:
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, f"ended before it was killed: {said()}"


def resume_command(words: str) -> list[str]:
    """The arguments of the command that the run named, ready for `gruppo(...)`."""
    found = re.findall(r"go on with  gruppo (.*)", words)
    assert found, f"no command to resume with: {words}"
    return shlex.split(found[-1])


def checkpoint(run: str, step: int) -> Path:
    return Path("runs") / run / "checkpoints" / f"step-{step:06d}"


def saved(run: str) -> list[str]:
    return sorted(p.name for p in (Path("runs") / run / "checkpoints").glob("*"))


def metrics(run: str) -> list[dict[str, Any]]:
    """The rows, without what depends on the clock."""
    return metric_rows(Path("runs") / run / "metrics.jsonl")


def metric_rows(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [{k: v for k, v in row.items() if "second" not in k} for row in rows]


def contents(path: Path) -> dict[str, Any]:
    """Every file under a path, byte for byte; of some what does not depend on the clock or on the run's name."""
    out: dict[str, Any] = {}
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        name = str(file.relative_to(path))
        if file.name == "state.json":
            out[name] = json.loads(file.read_text())
            out[name]["facts"].pop("seconds", None)
        elif file.name == "metrics.jsonl":
            out[name] = metric_rows(file)
        elif file.name == "manifest.json":
            out[name] = sorted(json.loads(file.read_text())["files"])
        elif file.name == "run.json":  # the configuration, with the name of the run
            out[name] = sorted(json.loads(file.read_text())["depends"].items())
        elif file.suffix == ".arrow" and path.name == "episodes":
            out[name] = without_seconds(file)
        else:
            out[name] = file.read_bytes()
    return out


def without_seconds(file: Path) -> bytes:
    """The file as it would be if every turn had taken no time."""
    episodes, beside = load_with_beside(file)
    for turn in (t for e in episodes for t in e.turns):
        turn.seconds = 0.0
    with TemporaryDirectory() as folder:
        save_episodes(Path(folder) / "episodes.arrow", episodes, beside)
        return (Path(folder) / "episodes.arrow").read_bytes()


def same_run(a: str, b: str, keep: int = 1) -> None:
    """Weights of every role, optimisers, memory, replay, metrics, episodes and the trained policy, bit for bit."""
    assert metrics(a) == metrics(b)
    for name in ("policy", "episodes"):
        left, right = (contents(Path("runs") / run / name) for run in (a, b))
        assert left == right and left, name
    last = saved(a)[-keep:]
    assert last == saved(b)[-keep:]
    for step in last:
        left, right = (contents(Path("runs") / run / "checkpoints" / step) for run in (a, b))
        different = [k for k in left if left[k] != right.get(k)]
        assert left.keys() == right.keys() and not different, f"{step}: {different}"
        assert {"state.json", "policy.safetensors", "optimiser-policy.safetensors"} <= left.keys()
