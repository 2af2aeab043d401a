"""`deterministic=true`: the same bits again on a GPU."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from train_runs import gruppo, metrics, train

from gruppo.train.config import RunConfig
from gruppo.train.run import Run


def test_its_callers_are_in_lockstep() -> None:
    """Also where it is not the default. On a CPU nothing else is needed."""
    run = Run(RunConfig(deterministic=True))
    try:
        assert run.engine.waves.lockstep and not torch.are_deterministic_algorithms_enabled()
    finally:
        run.judge.close()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["grpo", "ppo", "dapo", "gspo", "bapo", "d3s"])
def test_a_resumed_run_on_a_gpu_is_equal_bit_for_bit(name: str) -> None:
    settings = ("model.device=cuda", "deterministic=true", f"method={name}", "prompts=16", "samples=8", "steps=4")
    assert train("a", *settings) == 0
    assert train("b", *settings, "save.checkpoint_every=2") == 0
    shutil.rmtree("runs/b/checkpoints/step-000004")
    Path("runs/b/summary.json").unlink()
    assert gruppo("train", "--resume", "runs/b") == 0
    a, b = (load_file(Path("runs", x, "policy/model.safetensors")) for x in "ab")
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert metrics("a") == metrics("b")
