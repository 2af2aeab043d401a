"""Inside TRL: the same losses and gradients as our own learner, and what a user of TRL meets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import Tensor

pytest.importorskip("trl", reason="TRL is not installed: `make test-trl` has it")

from both_sides import Script, folder_of, inside, native, tokenizer_of

from gruppo.inside.fits import TRL, refusals
from gruppo.methods import all_methods
from gruppo.stages import Method
from gruppo.stages.update import Passes

FITS = [m for m in all_methods().values() if not refusals(m, TRL)]
Steps = tuple[list[float], list[Tensor]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("model"))


def twice(m: Method) -> Method:
    """With at least two optimiser steps on a batch, so that ratios leave 1 and the reference lags behind."""
    return m if m.update.steps > 1 else m.but(update=Passes(epochs=2))


def differ(a: Steps, b: Steps) -> tuple[float, float]:
    """The largest difference of losses, those above 1 relatively, and of gradients, relatively."""
    assert len(a[0]) == len(b[0]) == len(a[1]) == len(b[1])
    loss = max(abs(x - y) / max(abs(y), 1.0) for x, y in zip(a[0], b[0], strict=True))
    return loss, max(float((x - y).norm() / y.norm().clamp(min=1e-9)) for x, y in zip(a[1], b[1], strict=True))


@pytest.mark.parametrize("m", FITS, ids=lambda m: m.name)
def test_losses_and_gradients_are_those_of_our_learner(m: Method, folder: Path, tmp_path: Path) -> None:
    """For every method that fits, and every accumulation: the loss to 1e-6, the gradient to 1e-5, in float32.

    A method that enlarges the rounding of float32 itself may differ by as much as that does: it is measured.
    """
    script, m = Script(tokenizer_of(folder)), twice(m)
    names = ["task", "style"] if m.name == "gdpo" else ["task"]
    ours, bars = native(m, folder, script, names), (1e-6, 1e-5)
    assert max(float(g.norm()) for g in ours[1]) > 1e-3
    found = [differ(inside(m, folder, script, names, tmp_path, a), ours) for a in (1, 2, 4)]
    worst = tuple(max(f[i] for f in found) for i in (0, 1))
    if worst[0] > bars[0] or worst[1] > bars[1]:
        rounding = differ(native(m, folder, script, names, nudge=2.0**-24), ours)
        bars = tuple(min(max(bar, 3 * r), 1e-4) for bar, r in zip(bars, rounding, strict=True))
    assert worst[0] <= bars[0] and worst[1] <= bars[1]


SEVERAL = ("grpo", "gspo", "dapo", "disco", "kl_cov", "copo")


def test_two_processes_take_the_same_step(folder: Path, tmp_path: Path) -> None:
    """Additive and whole-step objectives, with selection and compared answers, on two processes (gloo)."""
    here = Path(__file__).parent
    torchrun = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONPATH": path}
    command = [*torchrun, str(here / "trl_worker.py"), str(folder), str(tmp_path), "1,2,4", *SEVERAL]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found) == set(SEVERAL)
    assert all(loss <= 1e-6 and grad <= 1e-5 for each in found.values() for loss, grad in each), found
