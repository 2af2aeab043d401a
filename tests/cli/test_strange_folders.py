"""Folders that are damaged, moved, made longer, or of somebody else: told apart, and never in the way of the others."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import refused, strict_json, trained

import gruppo
from gruppo.cli import main

OWN = "def reward(task, text):\n    return float(len(text) == {})\n"


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[str, str]:
    capsys.readouterr()
    assert main(list(argv)) == 0
    return capsys.readouterr()


def stop_at(step: int, monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> None:
    """What is trained meanwhile is stopped after that step."""

    def stop(self: Any, trainer: Any, seen: Any) -> None:
        trainer.stop.asked = int(seen.done == step)

    with monkeypatch.context() as once:
        once.setattr("gruppo.train.samples.Samples.step", stop)
        work()


# ---- gruppo runs


def replaced(file: str, old: str, new: str) -> None:
    text = Path(file).read_text()
    assert old in text
    Path(file).write_text(text.replace(old, new, 1))


def a_folder(file: str) -> None:
    Path(file).unlink()
    Path(file).mkdir()


SPOILT: dict[str, Callable[[str], Any]] = {
    "method": lambda at: Path(at, "config.toml").write_text('method = "grpo"\n'),
    "steps": lambda at: replaced(f"{at}/config.toml", "\nsteps = 2", '\nsteps = "x"'),
    "folder": lambda at: a_folder(f"{at}/config.toml"),
    "step": lambda at: replaced(f"{at}/metrics.jsonl", '{"step": 2', '{"step": 1e400'),
    "held_out": lambda at: replaced(f"{at}/metrics.jsonl", '"held_out": 0.0', '"held_out": "text"'),
    "held_out list": lambda at: replaced(f"{at}/metrics.jsonl", '"held_out": 0.0', '"held_out": []'),
    "summary": lambda at: Path(at, "summary.json").write_text("[]"),
}


def test_a_damaged_run_is_one_line_of_the_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(1, monkeypatch, lambda: trained("good"))
    trained("a")
    for name, spoil in SPOILT.items():
        shutil.copytree("runs/a", f"runs/{name}")
        spoil(f"runs/{name}")
    found = {r["name"]: r for r in strict_json(said(capsys, "runs", "--json")[0])}
    assert {name for name, r in found.items() if r["state"] == "damaged"} == set(SPOILT)
    assert all(found[name]["why"] for name in SPOILT)
    assert (found["a"]["state"], found["good"]["state"]) == ("finished", "stopped")
    text = said(capsys, "runs")[0]
    assert all(f"{name} is damaged: " in text for name in SPOILT)


def test_what_is_no_run_is_not_resumed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stop_at(1, monkeypatch, lambda: trained("good"))
    Path("runs/bad").mkdir()
    Path("runs/bad/config.toml").write_text('method = "grpo"\n')
    os.utime("runs/bad/config.toml", (2e9, 2e9))  # the newest
    assert "going on with runs/good" in said(capsys, "train", "--resume")[0]


def test_resume_alone_is_told_where_to_look(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(1, monkeypatch, lambda: trained("x", "save.folder=exp"))
    out, _ = said(capsys, "train", "--resume", "save.folder=exp/")
    assert "resumed exp/x after step 1" in out and "with changes" not in out
    shutil.move("exp/x", "there")
    moved = refused(capsys, "train", "--resume", "there", "save.folder=other")  # of a run that is named: a change
    assert "save.folder: exp → other" in moved


# ---- one rule for the end


def test_a_run_that_was_made_longer_is_finished_nowhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained("a")
    trained("b", "seed=1")
    run = gruppo.load("runs/a")
    assert run.finished and run.summary["steps"] == 2
    longer = ["train", "--resume", "runs/a", "steps=4", "--allow-changes"]
    stop_at(3, monkeypatch, lambda: main(longer))
    assert not run.finished and run.summary["stopped"] and run.summary["steps"] == 3
    capsys.readouterr()
    found = gruppo.compare(["runs/a", "runs/b"])
    assert [r.seed for r in found.results] == [1] and found.failed == {"runs/a": "not finished"}
    failed = strict_json(said(capsys, "compare", "runs/a", "runs/b", "--json")[0])["failed"]
    assert list(failed) == ["runs/a"]
    assert main(["train", "--resume", "runs/a"]) == 0
    assert run.finished and run.summary["steps"] == 4


# ---- gruppo eval


def test_a_reward_that_has_changed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("reward.py").write_text(OWN.format(1))
    trained("a", "task.reward=./reward.py:reward")
    assert "has changed" not in said(capsys, "eval", "runs/a")[1]
    gruppo.evaluate("runs/a")
    assert "has changed" not in capsys.readouterr().err
    Path("reward.py").write_text(OWN.format(2))
    for err in (said(capsys, "eval", "runs/a")[1], said(capsys, "eval", "runs/a/policy", "--json")[1]):
        assert "warning: what runs/a was trained with has changed" in err and "task.reward (reward.py): " in err
        assert "torch" not in err
    gruppo.evaluate("runs/a")
    assert "task.reward (reward.py): " in capsys.readouterr().err
    assert "has changed" not in said(capsys, "eval", "runs/a", "task.reward=numeric")[1]  # another one on purpose


def test_a_config_of_another_project_is_not_that_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    run = trained("a", "steps=1")
    Path("models").mkdir()
    shutil.copytree(run / "policy", "models/p")
    Path("config.toml").write_text('[server]\nport = 80\ntask = "web"\n')
    assert "taken from" not in said(capsys, "eval", "models/p", "eval.prompts=2")[1]
    Path("models/config.toml").write_text("no TOML at all")
    assert "taken from" not in said(capsys, "eval", "models/p", "eval.prompts=2")[1]
    Path(run / "config.toml").write_text('[server]\nport = 80\ntask = "web"\n')
    assert main(["eval", "runs/a"]) == 2 and "is not that of a run" in capsys.readouterr().err


# ---- episodes


def test_strange_files_beside_the_episodes_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    run = trained("a", "save.episodes_every=1")
    wanted = said(capsys, "episodes", "runs/a", "--all", "--json")[0]
    for name in ("step-x.arrow", "step-.arrow", "step-000002.copy.arrow", "step-7.arrow"):
        (run / "episodes" / name).write_text("")
    assert said(capsys, "episodes", "runs/a", "--all", "--json")[0] == wanted
    assert {json.loads(line)["step"] for line in wanted.splitlines()} == {1, 2}


# ---- what no run can have


@pytest.mark.parametrize("setting, part", [
    ("eval.k=0", "eval.k=0 with eval.samples=1"),
    ("save.log=foo", "save.log=foo: there is no such logger"),
    ("eval.patience=2 eval.every=0", "eval.patience=2 with eval.every=0"),
])  # fmt: skip
def test_what_train_refuses_is_refused_before(setting: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (("train",), ("train", "--dry-run"), ("doctor",)):
        assert part in refused(capsys, *command, "model=tiny-random", *setting.split())
