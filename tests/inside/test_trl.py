"""Inside TRL: the same losses and gradients as our own learner, and what a user of TRL meets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed: `make test-trl` has it")

from native_side import LEVEL, Script, differ, folder_of, native, tokenizer_of, twice
from trl_side import inside

from gruppo.inside.fits import TRL, refusals
from gruppo.methods import all_methods
from gruppo.stages import Method

FITS = [m for m in all_methods().values() if not refusals(m, TRL)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("exact"), "gpt2", torch.float64)


@pytest.mark.parametrize("m", FITS, ids=lambda m: m.name)
def test_losses_and_gradients_are_those_of_our_learner(m: Method, exact: Path, tmp_path: Path) -> None:
    """For every method that fits, and every accumulation: the loss to 1e-6, the gradient to 1e-5.

    In float64: `reg_grpo` and `drpo_decoupled` enlarge the last bits of float32, and the bar would be one for rounding.
    """
    script, m = Script(tokenizer_of(exact), LEVEL), twice(m)
    names = ["task", "style"] if m.name == "gdpo" else ["task"]
    ours = native(m, exact, script, names, torch.float64)
    assert max(float(g.norm()) for g in ours[1]) > 1e-3
    found = [differ(inside(m, exact, script, names, tmp_path, a, dtype=torch.float64), ours) for a in (1, 2, 4)]
    print(m.name, *(f"{max(f[i] for f in found):.1e}" for i in (0, 1)))
    assert all(loss <= 1e-6 and grad <= 1e-5 for loss, grad in found)


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
