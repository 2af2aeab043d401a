"""Methods of pairs lift the win rate on the generated preference task; SFT and RFT the accuracy of a task.

The win rate of the policy at the start against itself is 0.5. The fast test stops DPO after six steps. Between step 10
and 20 the win rate may fall below 0.5 for a while: the policy moves away from rejected answers faster than to chosen
ones (likelihood displacement, arXiv:2410.08847), and comes back.
"""

from pathlib import Path
from typing import Any

import pytest

from gruppo.methods import all_methods
from gruppo.tasks import TaskConfig
from gruppo.train.config import EvalConfig, RunConfig, SaveConfig
from gruppo.train.trainer import train

QUIET = {"checkpoint_every": 0, "episodes_every": 0, "tensorboard": "no"}


def trained(name: str, task: str, seed: int, steps: int, folder: Path) -> dict[str, Any]:
    save = SaveConfig(folder=str(folder), name="run", **QUIET)  # type: ignore[arg-type]
    method, shown = all_methods()[name], EvalConfig(every=0)
    config = RunConfig(method=method, task=TaskConfig(name=task), seed=seed, steps=steps, save=save, eval=shown)
    return train(config, quiet=True)


def test_six_steps_of_dpo_win_more_often(tmp_path: Path) -> None:
    done = trained("dpo", "preference", 0, 6, tmp_path)
    assert done["win_rate"] >= 0.55 and done["preferred_after"] >= 0.7


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["dpo", "ipo", "kto", "orpo", "simpo"])
def test_sixty_steps_lift_the_win_rate(name: str, seed: int, tmp_path: Path) -> None:
    done = trained(name, "preference", seed, 60, tmp_path)
    assert done["win_rate"] >= 0.55 and done["win_rate_low"] > 0.5
    assert done["preferred_after"] > done["preferred_before"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["sft", "rft"])
def test_sixty_steps_on_right_answers_raise_the_accuracy(name: str, seed: int, tmp_path: Path) -> None:
    done = trained(name, "addition", seed, 60, tmp_path)
    assert done["accuracy_after"] - done["accuracy_before"] >= 0.15
