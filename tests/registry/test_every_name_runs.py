"""Pitfall 30: a name that is advertised runs. Every registered method trains two steps through the command line."""

import json
from pathlib import Path

import pytest
from sweeps import fourth

from gruppo.cli import main
from gruppo.methods import all_methods

# A random policy writes no sum: here about half of its answers are right, so that there is something to learn.
REWARD = (
    "def even(task, text):\n    return float(sum(map(ord, text)) % 2 == 0)\n"
    "even.answer = lambda task, text: str(sum(map(ord, text)) % 3)\n"  # so that of four some agree
)
# Of methods that take many optimiser steps a step, a few.
LIGHT = {"archer": ["method.update.critic_epochs=3"]}


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("reward") / "even_reward.py"
    path.write_text(REWARD)
    return f"{path}:even"


@pytest.mark.parametrize("name", fourth(all_methods()))
def test_trains_two_steps(name: str, reward: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["model=tiny-random", "prompts=2", "samples=4", "steps=2", "eval.prompts=2", f"save.folder={tmp_path}"]
    roles = [f"method.cast.{r}=tiny" for r, role in all_methods()[name].cast.items() if not role.start]  # a teacher
    given = [*settings, *roles, *LIGHT.get(name, []), f"task.reward={reward}", "save.tensorboard=no", "--json"]
    code = main(["train", f"method={name}", *given])
    out = capsys.readouterr()
    assert code == 0, out.err
    summary = json.loads(out.out.splitlines()[-1])
    assert (summary["method"], summary["steps"]) == (name, 2)
    rows = [json.loads(line) for line in (Path(summary["folder"]) / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    norms = [v for row in rows for k, v in row.items() if k.startswith("grad_norm")]  # vapo begins with its critic
    assert max(norms) > 0, "no step had a gradient"
    assert (Path(summary["folder"]) / "policy" / "config.json").is_file()
