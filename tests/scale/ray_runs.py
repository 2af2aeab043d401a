"""Runs on a cluster of Ray that the tests start, and actors of theirs that they kill."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file
from starting import ENV
from torch import Tensor

RAY = "scale.address=local scale.ranks=2 scale.samplers=1 scale.judges=1 scale.cpus=0.5"

PATIENCE = 600.0  # seconds: the actors of Ray give way to everybody else on a busy machine
# Ray gives its own node 30 s to start, which no setting changes, and a busy machine takes longer: it is started again.
BUSY, TRIES, PAUSE = "Ray could not start on this machine", 6, 20.0


def words_of(folder: Path, name: str, steps: int, *more: str) -> list[str]:
    small = "method=grpo prompts=8 samples=4 threads=1 show=0 eval.every=0 eval.prompts=4"
    save = f"save.folder={folder} save.name={name} save.checkpoint_every=1 save.keep=1000 save.tensorboard=no"
    return [*small.split(), *save.split(), f"steps={steps}", *more]


class Started:
    """`gruppo train WORD…` in a process of its own. What it says goes to a file: nobody reads a pipe meanwhile."""

    def __init__(self, log: Path, *words: str) -> None:
        self.log, self.words, self.tries = log, words, TRIES
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "gruppo", "train", *self.words]
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                command, env=ENV, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def _again(self) -> bool:
        """Whether it has ended because Ray was too slow to start, and was started again."""
        self.tries -= 1
        if self.process.poll() is None or BUSY not in self.said or not self.tries:
            return False
        time.sleep(PAUSE)
        self._start()
        return True

    @property
    def said(self) -> str:
        return self.log.read_text()

    def until(self, seen: Callable[[], object]) -> None:
        """Waits for something. Whatever fails here, nothing is left behind: Ray ends with the process of the run."""
        limit = time.monotonic() + PATIENCE
        while not seen():
            if self.process.poll() is not None and self._again():
                limit = time.monotonic() + PATIENCE
            elif self.process.poll() is not None or time.monotonic() > limit:
                self.process.kill()
                raise AssertionError(self.said)
            time.sleep(0.02)

    def ended(self) -> str:
        """What it said; its exit code is in `process`."""
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
        return self.ended() if self._again() else self.said

    def well(self) -> str:
        said = self.ended()
        assert self.process.returncode == 0, said
        return said

    def actors(self, kind: str) -> list[int]:
        """Processes of actors of this class that belong to this run."""
        return [pid for pid in under(self.process.pid) if title(pid).startswith(f"ray::{kind}")]

    def kill(self, kind: str) -> int:
        """Kills the actor of this class that runs now."""
        found = list[int]()

        def one() -> bool:
            found[:] = self.actors(kind)
            return len(found) == 1  # none while its title changes

        self.until(one)
        os.kill(found[0], signal.SIGKILL)
        return found[0]


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def under(root: int) -> list[int]:
    """All processes that descend from one."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def apart(a: Path, b: Path, step: int) -> float:
    """The largest difference of weights and moments of two runs after a step."""
    return max(float(d.max()) for d in _differences(a, b, step))


def further(a: Path, b: Path, step: int, size: float) -> int:
    """How many weights and moments of two runs differ by more than `size` after a step."""
    return sum(int((d > size).sum()) for d in _differences(a, b, step))


def _differences(a: Path, b: Path, step: int) -> list[Tensor]:
    one, other = (run / f"checkpoints/step-{step:06d}" for run in (a, b))
    files = sorted(p.name for p in one.glob("*.safetensors"))
    assert files and files == sorted(p.name for p in other.glob("*.safetensors"))
    both = [(load_file(one / name), load_file(other / name)) for name in files]
    assert all(x.keys() == y.keys() for x, y in both)
    return [(x[k].double() - y[k].double()).abs() for x, y in both for k in x]


def moved(run: Path, steps: int) -> float:
    """How far the weights went from the first step to the last."""
    first, last = (load_file(run / f"checkpoints/step-{n:06d}/policy.safetensors") for n in (1, steps))
    return max(float((first[k] - last[k]).abs().max()) for k in first)


def resumed(said: str) -> list[str]:
    """The words after `gruppo train` of the command to go on with."""
    found = re.search(r"go on with {2}gruppo train (--resume \S+)", said)
    assert found, said
    return found[1].split()
