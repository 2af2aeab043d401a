"""`deterministic=true`: the same bits again on a GPU."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from train_runs import gruppo, metrics, train

import gruppo.train.run as run_module
from gruppo.train.config import ModelConfig, RunConfig
from gruppo.train.run import Run


def test_its_callers_are_in_lockstep() -> None:
    """Also where it is not the default. On a CPU nothing else is needed."""
    run = Run(RunConfig(deterministic=True))
    try:
        assert run.engine.waves.lockstep and not torch.are_deterministic_algorithms_enabled()
    finally:
        run.judge.close()


def test_it_ends_with_the_last_run_that_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with one that could not be set up; else the next run of the process loses its graphs without a word."""
    monkeypatch.setattr(run_module, "needed", lambda deterministic, device: deterministic)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # taken back after the test
    before = torch_settings()
    a, b = Run(RunConfig(deterministic=True)), Run(RunConfig(deterministic=True))
    plain = Run(RunConfig())
    for run in (plain, a):
        assert torch_settings() == (True, False)
        run.close()
        run.close()  # twice is once
    assert torch_settings() == (True, False)
    b.close()
    assert torch_settings() == before
    with pytest.raises(ValueError, match="no-such-model") as found:  # which keeps the traceback, as a notebook does
        Run(RunConfig(deterministic=True, model=ModelConfig("no-such-model")))
    assert torch_settings() == before and found.tb is not None


def torch_settings() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory


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
    assert not torch.are_deterministic_algorithms_enabled()  # tests of graphs come after this one
