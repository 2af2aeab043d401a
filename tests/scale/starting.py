"""Processes that the tests of this folder start."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from warm import ranks

from gruppo.methods import method
from gruppo.train.config import EvalConfig, ModelConfig, RunConfig, SaveConfig

WORKER = Path(__file__).with_name("scale_worker.py")
FAILING = Path(__file__).with_name("failing_worker.py")
ENV = {k: v for k, v in os.environ.items() if k not in ("WORLD_SIZE", "RANK")} | {"OMP_NUM_THREADS": "1"}


def torchrun(size: int, *words: str, seconds: float = 250, fails: bool = False) -> subprocess.CompletedProcess[str]:
    """Words after `torchrun`, on so many ranks."""
    start = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={size}", "--standalone"]
    done = subprocess.run([*start, *words], env=ENV, capture_output=True, text=True, timeout=seconds)
    assert (done.returncode != 0) == fails, done.stderr[-3000:]
    return done


def worked(folder: Path, size: int, *words: str, seconds: float = 250) -> dict[str, Any]:
    """What the worker found on so many ranks."""
    ranks(size, folder, WORKER, str(folder / "found.json"), *words, seconds=seconds)
    return json.loads((folder / "found.json").read_text())


def config(folder: Path, name: str, steps: int, **more: Any) -> RunConfig:
    """A small run in float64, with a critic: what two processes round differently stays far below."""
    return RunConfig(
        method=method("ppo"),
        steps=steps,
        prompts=4,
        samples=4,
        threads=1,
        show=0,
        model=ModelConfig(dtype="float64"),
        eval=EvalConfig(every=0, prompts=4),
        save=SaveConfig(folder=str(folder), name=name, checkpoint_every=1, keep=1000, tensorboard="no"),
        **more,
    )


def words_of(folder: Path, name: str, steps: int) -> list[str]:
    """The same on the command line."""
    small = "method=ppo prompts=4 samples=4 threads=1 show=0 model.dtype=float64 eval.every=0 eval.prompts=4"
    save = f"save.folder={folder} save.name={name} save.checkpoint_every=1 save.keep=1000 save.tensorboard=no"
    return [*small.split(), *save.split(), f"steps={steps}"]
