"""Arms of several stages in a claim: imitation first, then reinforcement learning."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from claim_folder import folder_with
from in_this_process import in_process
from test_gates import PLACEBO, RATES, SWEPT

from gruppo.cli import main
from gruppo.lab.claims import command, pictures
from gruppo.lab.claims.claim import Claim, Condition, read
from gruppo.lab.claims.in_tables import exact_runs
from gruppo.lab.compare import command as compare
from gruppo.lab.compare.compare import Result
from gruppo.lab.tabular.setup import TASK

__all__ = ["in_process"]

TWO = "sft samples=1 steps=1 optim.lr=1e-3 then reinforce steps=2"
SMALL = ["steps=3", "prompts=2", "samples=2", "eval.prompts=10", "eval.every=0"]


def test_an_arm_is_swept_in_its_last_stage(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    text = SWEPT.replace('"reinforce"', f'"{TWO}"')
    path.write_text(f'{text}[chosen]\nbaseline = "{RATES[1]}"\nentrant = "{RATES[2]}"\nplacebo = "{RATES[1]}"\n')
    claim = read(path)
    assert claim.swept(claim.placebo) == (*RATES,) and claim.swept("sft steps=1 then grpo optim.lr=1 steps=1") == ()
    assert claim.arms["placebo"] == f"{TWO} {RATES[1]}"
    entrant = compare.parsed(claim.arms["placebo"])
    assert entrant.settings[-1] == RATES[1] and RATES[1] not in entrant.earlier[0]


def test_the_point_of_the_entrant_goes_to_the_last_stage_where_it_has_none() -> None:
    made = (Condition("last(x)", "higher", 0.05, against="placebo"),)
    claim = Claim("n", "m", "c", "a", "b", (), made, chosen={"entrant": "optim.lr=1"}, placebo=TWO)
    assert claim.arms["placebo"] == f"{TWO} optim.lr=1"
    own = Claim(**{**vars(claim), "placebo": f"{TWO} optim.lr=2"})
    assert own.arms["placebo"] == f"{TWO} optim.lr=2"


def test_runs_of_a_claim_with_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: list[list[str]]
) -> None:
    """Of all stages; the same command goes on after the first; measures read the last one, counted on."""
    read_runs: list[dict[str, list[Result]]] = []

    def kept(*given: Any) -> Any:
        read_runs.append(made(*given))
        return read_runs[-1]

    made = command.runs_of
    monkeypatch.setattr(command, "runs_of", kept)
    text = PLACEBO.replace('"reinforce"', f'"{TWO}"').replace('["steps=2"]', json.dumps(SMALL))
    folder_with(text, tmp_path, monkeypatch)
    monkeypatch.setattr(command, "gated", lambda *_: [])  # test_gates.py has them
    argv = ["claims", "b", "--runs-only", "1", "--jobs", "1"]
    assert main(argv) == 0 and len(in_process) == 4
    [placebo] = read_runs[-1]["placebo"]
    assert list(placebo.curve("held_out")) == [1, 3] and placebo.last("sampled") > 0 == placebo.curve("sampled")[1]

    in_process.clear()
    [last] = Path("runs/claims/b-verdict").glob("sft*/seed-0")
    shutil.rmtree(last)
    assert main(argv) == 0 and len(in_process) == 1
    assert read_runs[-1]["placebo"][0].curve("held_out") == placebo.curve("held_out")


def test_an_exact_world_has_no_stages(tmp_path: Path) -> None:
    claim = Claim("n", "m", "c", "a", "b", (f"task={TASK}",), ())
    with pytest.raises(ValueError, match="several stages, and training in an exact world saves no policy"):
        exact_runs(claim, {"placebo": compare.parsed(TWO)}, [0], tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())


def test_curves_name_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    labels, plot = list[str](), Axes.plot

    def noted(axis: Axes, *given: Any, label: str) -> Any:
        labels.append(label)
        return plot(axis, *given, label=label)

    monkeypatch.setattr(Axes, "plot", noted)
    curve = {"step": [0.0, 1.0], "mean": [0.1, 0.2], "low": [0.1, 0.2], "high": [0.1, 0.2]}
    arms = {"baseline": "grpo", "entrant": "rloo", "placebo": TWO}
    pictures.draw({"arms": arms, "curves": {arm: {"held_out": curve} for arm in arms}}, tmp_path / "b.png")
    assert labels == ["grpo", "rloo", "sft then reinforce"]
