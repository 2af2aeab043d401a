"""Every method teaches the built-in policy: held-out accuracy rises by at least 0.15 within 60 steps.

The fast test stops GRPO after ten steps; the whole table (`-m slow`) takes half a minute a run on one core, and longer
for those that sample more. Methods of pairs are in test_preference_learning.py.
"""

import json
from pathlib import Path

import pytest

from gruppo.cli import main
from gruppo.methods import all_methods

QUIET = ("save.checkpoint_every=0", "save.episodes_every=0", "save.tensorboard=no", "--json")

# What a method cannot do without: a teacher, a task on which its drafts are of use, tasks that come again.
NEEDS = {
    "kdrl": ("method.cast.teacher=tiny",),
    "igrpo": ("task=countdown", "task.level=1", "optim.lr=3e-4"),  # with 1e-4 it rises by 0.13
    "hapo_history": ("task.train_size=256",),
    "mmr1_vas": ("task.train_size=256",),
    "spo_single": ("task.train_size=256",),
}
OF_PAIRS = {"dpo", "ipo", "kto", "orpo", "simpo"}


def risen(method: str, seed: int, steps: int, folder: Path) -> float:
    summary = trained(folder, f"method={method}", f"steps={steps}", f"seed={seed}", *NEEDS.get(method, ()))
    assert summary["accuracy_before"] <= 0.5
    return summary["accuracy_after"] - summary["accuracy_before"]


def trained(folder: Path, *settings: str) -> dict[str, float]:
    assert main(["train", *settings, f"save.folder={folder}", "save.name=run", *QUIET]) == 0
    return json.loads((folder / "run" / "summary.json").read_text())


def test_ten_steps_of_grpo_teach_something(tmp_path: Path) -> None:
    assert risen("grpo", seed=0, steps=10, folder=tmp_path) >= 0.15


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", sorted(set(all_methods()) - OF_PAIRS))
def test_sixty_steps_raise_held_out_accuracy(name: str, seed: int, tmp_path: Path) -> None:
    assert risen(name, seed, 60, tmp_path) >= 0.15


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_default_run_ends_at_nine_in_ten(seed: int, tmp_path: Path) -> None:
    summary = trained(tmp_path, f"seed={seed}")
    assert summary["accuracy_before"] <= 0.5 and summary["accuracy_after"] >= 0.9
