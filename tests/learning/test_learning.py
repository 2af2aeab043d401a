"""Every on-policy method teaches the built-in policy: held-out accuracy rises by at least 0.15 within 60 steps.

The fast test stops GRPO after ten steps; the whole table (`-m slow`) takes about a minute a run on one core.
"""

from pathlib import Path

import pytest

from gruppo.methods import all_methods
from gruppo.train.config import RunConfig, SaveConfig
from gruppo.train.trainer import train

QUIET = {"checkpoint_every": 0, "episodes_every": 0, "tensorboard": "no"}


def risen(method: str, seed: int, steps: int, folder: Path) -> float:
    save = SaveConfig(folder=str(folder), name="run", **QUIET)  # type: ignore[arg-type]
    summary = train(RunConfig(method=all_methods()[method], seed=seed, steps=steps, save=save), quiet=True)
    assert summary["accuracy_before"] <= 0.5
    return summary["accuracy_after"] - summary["accuracy_before"]


def test_ten_steps_of_grpo_teach_something(tmp_path: Path) -> None:
    assert risen("grpo", seed=0, steps=10, folder=tmp_path) >= 0.15


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", sorted(all_methods()))
def test_sixty_steps_raise_held_out_accuracy(name: str, seed: int, tmp_path: Path) -> None:
    assert risen(name, seed, 60, tmp_path) >= 0.15


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_default_run_ends_at_nine_in_ten(seed: int, tmp_path: Path) -> None:
    save = SaveConfig(folder=str(tmp_path), name="run", **QUIET)  # type: ignore[arg-type]
    summary = train(RunConfig(seed=seed, save=save), quiet=True)
    assert summary["accuracy_before"] <= 0.5 and summary["accuracy_after"] >= 0.9
