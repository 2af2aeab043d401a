"""Methods that remember tasks go on exactly: tasks come again, so what they remember is what the next step does."""

import signal
from typing import Any

import pytest
import torch
from train_runs import checkpoint, gruppo, metrics, same_run, saved, train

from gruppo.stages import Memory
from gruppo.stages.tables import Table
from gruppo.train import trainer
from gruppo.train.checkpoint import load_checkpoint

STEPS = ("steps=5", "save.checkpoint_every=2", "eval.every=5", "eval.prompts=4", "task.train_size=8", "optim.lr=3e-3")
REMEMBERS = {"hapo_history": "shortest", "dump": "domains", "mmr1_vas": "variance", "spo_single": "tracker"}


# The others go on exactly in their own files of tests/methods, and spo_single in test_torture.py, too.
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "dump" else pytest.mark.slow) for n in REMEMBERS])
def test_a_run_that_is_stopped_goes_on_as_if_it_had_not_been(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = (f"method={name}", "task=mix:addition@1+chain@1", *STEPS)
    if name == "spo_single":
        settings = (*settings, "samples=1", "prompts=6")
    assert train("a", *settings) == 0
    plain = trainer.train_step

    async def stopped(run: Any, step: int) -> Any:
        if step + 1 == 3:
            signal.raise_signal(signal.SIGINT)
        return await plain(run, step)

    monkeypatch.setattr(trainer, "train_step", stopped)
    assert train("b", *settings) == 0 and saved("b")[-1] == "step-000003"
    monkeypatch.setattr(trainer, "train_step", plain)
    memory = load_checkpoint(checkpoint("b", 3)).memory
    assert memory[REMEMBERS[name]], "nothing was remembered"
    assert gruppo("train", "--resume", "runs/b") == 0
    same_run("a", "b", keep=2)
    assert [row["step"] for row in metrics("b")] == list(range(6))


def test_spo_forgets_by_how_far_the_policy_has_moved() -> None:
    """Eight tasks, six a step: almost all come again, and the larger the steps the less of the past is kept."""
    kept = {}
    for lr in ("0", "3e-3"):
        settings = ("method=spo_single", "samples=1", "prompts=6", "task=addition", "task.level=1", *STEPS[:-1])
        assert train(f"lr{lr}", *settings, f"optim.lr={lr}") == 0
        state = load_checkpoint(checkpoint(f"lr{lr}", 5))
        tracker = Table.of(Memory(state.memory), "tracker")
        assert sorted(tracker.columns["index"].tolist()) == list(range(len(tracker)))
        assert {e.task for e in state.replay} and len(state.replay) == len(tracker)
        assert all("logp_old" in e.notes for e in state.replay)
        kept[lr] = float((tracker.columns["a"] + tracker.columns["b"]).sum())
    assert kept["0"] > kept["3e-3"] + 0.1
    # A policy that stands still keeps 0.96 at each visit: 30 answers, 8 tasks at most.
    assert torch.tensor(kept["0"]) < 30 + 8
