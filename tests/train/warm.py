"""Processes that are forked from one that has imported everything: a new Python spends four seconds on that.

The warm process is that of `gruppo compare`, with a main program that is told its code and its environment.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from unittest import mock

from gruppo.lab.compare import starter
from gruppo.lab.compare.starter import CAN_FORK, Starter, WarmRun

SRC = str(Path(__file__).parents[2] / "src")
MAIN = "from gruppo.cli import main; raise SystemExit(main())"
Process = WarmRun | subprocess.Popen[str]

_BOOT = (
    "import json, os, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from gruppo.train import curves; from matplotlib.figure import Figure; "
    "curves.figure = lambda rows, title: Figure((1, 1)); "  # drawing takes as long as a small run
    "from gruppo.lab.compare.starter import serve; serve(int(sys.argv.pop(1))); "
    "os.environ.clear(); os.environ.update(json.loads(sys.argv.pop(1))); exec(sys.argv.pop(1))"
)
# As the command `gruppo` has it: without the folder in which it is called, and without those of the tests.
_PATH = [SRC, *(p for p in sys.path if Path(p).is_relative_to(sys.prefix) or Path(p).is_relative_to(sys.base_prefix))]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **more}


@cache
def _starter() -> Starter:
    with mock.patch.object(starter, "_BOOT", _BOOT):
        made = Starter(environment(), _PATH)
    while not made.settled():
        time.sleep(0.005)
    assert made.ready
    return made


def begin(*argv: str, env: Mapping[str, str], code: str = MAIN, log: str = "said.txt", forked: bool = True) -> Process:
    """The code in a process of its own, in this folder; its words go to a file."""
    with Path(log).open("wb") as words:
        if forked and CAN_FORK:
            made = _starter().start((json.dumps(dict(env)), code, *argv), words, ())
            assert made is not None
            return made
        return subprocess.Popen([sys.executable, "-c", code, *argv], env=env, stdout=words, stderr=words, text=True)


def ranks(size: int, folder: Path, script: Path, *argv: str, seconds: float = 900) -> None:
    """A script in so many processes that find each other, as under `torchrun`, but forked; words to FOLDER/N.txt."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    code, until = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')", time.monotonic() + seconds
    shared = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    env = [environment(**shared, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(size)]
    logs = [folder / f"{rank}.txt" for rank in range(size)]
    started = [begin(*argv, env=mine, code=code, log=str(log)) for mine, log in zip(env, logs, strict=True)]
    try:
        while (codes := [process.poll() for process in started]) != [0] * size:
            words = "\n".join(log.read_text()[-3000:] for log in logs)
            assert not any(codes) and time.monotonic() < until, f"exit codes {codes}: {words}"
            time.sleep(0.05)
    finally:
        for process in started:
            process.kill()


def command(*argv: str) -> tuple[int, str]:
    """`gruppo ARGV` in a process of its own: its exit code and its words."""
    code = begin(*argv, env=environment(), log="command.txt").wait(300)
    return code, Path("command.txt").read_text()
