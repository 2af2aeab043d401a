"""What a run leaves behind, and that it is enough to repeat it."""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from train_runs import contents, gruppo, metrics, same_run, train

from gruppo.data.store import load_episodes
from gruppo.policies import load_policy, load_tokenizer
from gruppo.tasks import TaskConfig
from gruppo.train import metrics as glossary
from gruppo.train.config import ModelConfig, RunConfig, SaveConfig
from gruppo.train.folder import RunFolder
from gruppo.train.summary import train_words

OWN = """
from gruppo.methods.grpo import GRPO
from gruppo.stages import Occupant, Term, need
from dataclasses import dataclass

@dataclass(frozen=True)
class Nudge(Occupant):
    coef: float = 0.1

    def needs(self, ctx):
        return (need("logp", when="step"),)

    def terms(self, ctx, batch):
        return [Term(type(self).__name__.lower(), batch.policy_N, coef=self.coef)]

    def __call__(self, ctx, batch, stats):
        return {type(self).__name__.lower(): stats.logp_N}

MINE = GRPO.but(name="mine", penalties=Nudge())
"""


def test_everything_is_there(picture: None, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("steps=4", "save.tensorboard=auto", "task=addition", "task.level=2")
    assert train("a", *settings) == 0
    words, run = capsys.readouterr().out, Path("runs/a")

    config = tomllib.loads((run / "config.toml").read_text())
    assert config["method"]["name"] == "grpo" and config["steps"] == 4 and config["task"]["level"] == "2"
    facts = json.loads((run / "environment.json").read_text())
    assert facts["torch"] == torch.__version__ and facts["threads"] == 1 and facts["commit"]
    assert {"gruppo", "python", "numpy", "cores", "platform", "device"} <= facts.keys()

    rows = metrics("a")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in rows if "held_out" in row] == [0, 4]
    assert all(glossary.known(name) for row in rows for name in row)
    for line in (run / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))

    episodes = load_episodes(run / "episodes" / "step-000004.arrow")
    assert len(episodes) == 16 and all(e.text and e.reward for e in episodes)
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (run / "curves.png").stat().st_size > 10_000

    summary = json.loads((run / "summary.json").read_text())
    assert summary["accuracy_before"] == rows[0]["held_out"] and summary["accuracy_after"] == rows[-1]["held_out"]
    assert summary["steps"] == 4 and summary["seconds"] > 0 and summary["tokens_per_second"] > 0
    for name in ("curves.png", "episodes", "policy", "summary.json"):
        assert str(run / name) in words and (run / name).exists()
    assert "try next:" in words and "gruppo eval runs/a task.level=3" in words

    assert load_policy(run / "policy").vocab == load_tokenizer(run / "policy").vocab
    words = ("eval.prompts=8", "task.level=2", "steps=3", "scale.ranks=2")
    assert gruppo("eval", "runs/a/policy", *words, "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["accuracy"] == summary["accuracy_after"]
    assert "steps=3, scale.ranks=2 changes nothing: an evaluation does not train" in err


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ({}, "train method=dapo"),
        ({"task": TaskConfig("chain")}, "train task=chain method=dapo"),
        ({"task": TaskConfig("./my data.jsonl")}, "train task='./my data.jsonl' method=dapo"),
        ({"task": TaskConfig("kuhn"), "model": ModelConfig("tiny-agent")}, "train task=kuhn method=dapo"),
        ({"task": TaskConfig("kuhn")}, "train --config runs/a/config.toml method=dapo"),
        (
            {"task": TaskConfig("kuhn", against="random"), "model": ModelConfig("tiny-agent")},
            "train --config runs/a/config.toml method=dapo",
        ),
        (
            {"model": ModelConfig("smollm2"), "save": SaveConfig(name="a")},
            "train --config runs/a/config.toml method=dapo save.name=a-dapo",
        ),
    ],
)
def test_the_next_method_is_tried_on_the_same_task_with_the_same_model(given: dict[str, Any], command: str) -> None:
    assert train_words(RunConfig(**given), RunFolder(Path("runs/a")), "dapo") == command


def test_another_method_is_tried_with_all_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """`task.against` and all others, in a folder of its own."""
    against = ("task=kuhn", "model=tiny-agent", "task.against=random")
    assert train("a", *against, "steps=1", "prompts=2", "samples=2", "eval.prompts=2") == 0
    [command] = [c for c in re.split(r"   ·   |\n", capsys.readouterr().out) if c.startswith("gruppo train --config")]
    assert gruppo(*command.split()[1:]) == 0
    config = RunFolder(Path("runs") / command.split("save.name=")[1]).read_config()
    assert config.task.against == "random" and config.prompts == 2 and config.method.name != "grpo"


def test_the_command_to_try_next_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("a", "steps=1", "task=countdown", "eval.prompts=2") == 0
    command = capsys.readouterr().out.rstrip().splitlines()[-1].split()
    assert command[:2] == ["gruppo", "eval"] and "task.level=3" in command
    assert gruppo(*command[1:], "eval.prompts=2") == 0
    assert "countdown: accuracy" in capsys.readouterr().out


def test_tensorboard(picture: None) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert train("a", "steps=2", "save.tensorboard=yes", "eval.prompts=2") == 0
    events = EventAccumulator("runs/a/tensorboard").Reload()
    rows = metrics("a")
    assert [e.step for e in events.Scalars("reward")] == [1, 2]
    assert [e.value for e in events.Scalars("reward")] == pytest.approx([row["reward"] for row in rows[1:]])


def test_config_repeats_the_run() -> None:
    assert train("a", "method=dapo", "steps=3", "seed=3", "optim.lr=cosine(1e-3, 1e-4, steps=3)") == 0
    assert gruppo("train", "--config", "runs/a/config.toml", "save.name=b") == 0
    same_run("a", "b")


def test_config_of_an_own_method_repeats_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.py").write_text(OWN)
    assert train("a", "method=./own.py:MINE", "steps=3", "method.penalties.nudge.coef=0.3") == 0
    assert Path("runs/a/code/own.py").read_text() == OWN
    assert gruppo("train", "--config", "runs/a/config.toml", "save.name=b") == 0
    same_run("a", "b")
    Path("own.py").unlink()
    assert gruppo("train", "--config", "runs/a/config.toml", "save.name=c") == 2
    assert "--trust-code" in capsys.readouterr().err and not Path("runs/c").exists()
    assert gruppo("train", "--config", "runs/a/config.toml", "save.name=c", "--trust-code") == 0
    same_run("a", "c")


@pytest.mark.parametrize("called, on_path, says", [
    (".venv/bin/gruppo", False, ".venv/bin/gruppo"),
    ("a b/gruppo", False, "'a b/gruppo'"),
    (".venv/bin/gruppo", True, "gruppo"),
    ("script.py", False, "gruppo"),
])  # fmt: skip
def test_the_command_to_go_on_with_can_be_typed(
    called: str, on_path: bool, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make train` calls a gruppo that is not on the path."""
    Path("bin").mkdir()
    if on_path:
        Path("bin/gruppo").touch(mode=0o755)
    monkeypatch.setenv("PATH", "bin")
    monkeypatch.setattr(sys, "argv", [called])
    assert RunFolder(Path("runs/a")).resume_command == f"{says} train --resume runs/a"


def test_two_files_of_one_name_are_both_kept() -> None:
    for folder, coef in (("one", "0.1"), ("two", "0.2")):
        Path(folder).mkdir()
        Path(folder, "own.py").write_text(OWN.replace("0.1", coef).replace("Nudge", f"Nudge{folder.title()}"))
    settings = ("method.penalties=./one/own.py:NudgeOne", "method.penalties+=./two/own.py:NudgeTwo", "steps=2")
    assert train("a", *settings, "eval.prompts=2") == 0
    assert len(list(Path("runs/a/code").iterdir())) == 2
    assert gruppo("train", "--config", "runs/a/config.toml", "save.name=b") == 0
    same_run("a", "b")


def test_two_runs_of_one_second_have_two_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gruppo.train.opening.time.strftime", lambda _: "now")
    for _ in range(2):
        assert train("", "steps=1", "eval.prompts=2") == 0
    assert sorted(p.name for p in Path("runs").iterdir()) == ["grpo-addition-0-now", "grpo-addition-0-now-2"]


def test_a_dry_run_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("a", "--dry-run") == 0
    words = capsys.readouterr().out
    assert "# ready: 60 steps of 4 x 4 answers" in words
    assert tomllib.loads(words)["method"]["name"] == "grpo"
    assert not list(Path().iterdir())


def test_a_run_that_is_refused_leaves_nothing() -> None:
    assert train("a", "method.objective.mean=tokn") == 2
    assert not contents(Path("runs"))
    assert not list(Path("runs").iterdir())


def test_a_printed_dry_run_is_a_run_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("a", "method=rloo", "steps=2", "eval.prompts=2", "--dry-run") == 0
    Path("run.toml").write_text(capsys.readouterr().out)
    assert gruppo("train", "--config", "run.toml") == 0
    assert json.loads(Path("runs/a/summary.json").read_text())["method"] == "rloo"
