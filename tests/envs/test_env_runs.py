"""Runs in environments, as a user makes them: train, resume bit for bit, evaluate, look at episodes."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gruppo.cli import main, overrides
from gruppo.data import Source
from gruppo.data.store import load_episodes
from gruppo.policies import load_tokenizer
from gruppo.train.config import RunConfig
from gruppo.train.doctor import _says
from gruppo.train.run import Run
from gruppo.train.worlds import unread_words

SMALL = ("model=tiny-random", "prompts=2", "samples=2", "steps=2", "eval.prompts=2", "eval.every=1", "threads=1")
SMALL += ("save.tensorboard=no", "save.checkpoint_every=1", "save.episodes_every=1", "sampling.max_tokens=4")
SMALL += ("accept=dead_groups,mask",)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None, no_picture: None) -> None:
    monkeypatch.chdir(tmp_path)


def rows(name: str) -> list[dict[str, Any]]:
    kept = [json.loads(line) for line in Path(f"runs/{name}/metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if "second" not in k} for row in kept]


SELF_PLAY = pytest.param("tictactoe", marks=pytest.mark.slow)  # a game of two policies: kuhn, below


@pytest.mark.parametrize("task", ["tictactoe task.against=random", "mix:guess+addition", SELF_PLAY])
def test_a_run_goes_on_bit_for_bit(task: str) -> None:
    for name in "ab":
        assert main(["train", *SMALL, *f"task={task}".split(), f"save.name={name}"]) == 0
    shutil.rmtree("runs/b/checkpoints/step-000002")
    Path("runs/b/summary.json").unlink()
    assert main(["train", "--resume", "runs/b"]) == 0
    a, b = (Path(f"runs/{x}/policy/model.safetensors").read_bytes() for x in "ab")
    assert a == b and rows("a") == rows("b")


def test_deterministic_runs_in_a_world_are_in_lockstep_and_equal() -> None:
    """Also if lockstep was turned off: worlds are pure functions, so their runs can keep the promise."""
    for name in "ab":
        wanted = ("task=kuhn", "deterministic=yes", "engine.lockstep=no", f"save.name={name}")
        assert main(["train", *SMALL, *wanted]) == 0
    a, b = (Path(f"runs/{x}/policy/model.safetensors").read_bytes() for x in "ab")
    assert a == b and rows("a") == rows("b")
    run = Run(overrides.apply(RunConfig(), (*SMALL, "task=kuhn", "deterministic=yes", "engine.lockstep=no")))
    try:
        assert "lockstep" in run.engine.promises
    finally:
        run.close()


def test_metrics_and_episodes_of_turns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "task=household", "save.name=a"]) == 0
    row = rows("a")[-1]
    assert row["turns"] > 1 and row["turns/invalid"] > 0 and row["failed"] == 0
    [e, *_] = load_episodes(Path("runs/a/episodes/step-000002.arrow"))
    assert len(e.turns) > 1 and all(t.state and t.text == t.text for t in e.turns) and set(e.reward) == {"task"}
    capsys.readouterr()
    assert main(["episodes", "runs/a", "--limit", "1"]) == 0
    said = capsys.readouterr().out
    assert f"{len(e.turns)} turns" in said and "> " in said
    assert main(["eval", "runs/a", "eval.prompts=3"]) == 0
    said = capsys.readouterr().out
    assert "on 3 held-out prompts" in said and "turns/recurring" not in said  # no other episode of a group
    assert main(["eval", "runs/a", "eval.prompts=3", "eval.samples=2"]) == 0
    assert "turns/recurring" in capsys.readouterr().out


def test_calls_of_tools_are_counted_and_paid() -> None:
    """OTC sees them: a right rollout with more calls than the best one is paid less."""
    small = (
        "model=tiny-agent",
        "prompts=4",
        "samples=8",
        "steps=1",
        "eval.every=0",
        "threads=1",
        "save.tensorboard=no",
    )
    assert (
        main(["train", *small, "task=calculator", "method=otc", "seed=1", "save.episodes_every=1", "save.name=a"]) == 0
    )
    found = load_episodes(Path("runs/a/episodes/step-000001.arrow"))
    calls = [sum(len(t.tools) for t in e.turns) for e in found]
    assert rows("a")[-1]["tool_calls"] == pytest.approx(np.mean(calls)) and max(calls) > min(calls) >= 0
    right = [(n, e.reward["efficient"]) for n, e in zip(calls, found, strict=True) if e.reward["task"] == 1]
    assert right and any(n > 1 and paid < 1 for n, paid in right)
    assert {c.name for e in found for t in e.turns for c in t.tools} == {"calculator"}


def test_what_only_an_environment_hears_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "method=ufo", "task=addition", "save.name=a", "steps=1"]) == 0
    assert "ufo asks for further tries, and a task of one answer has none" in capsys.readouterr().out
    assert main(["train", *SMALL, "method=ufo", "task=guess", "save.name=b", "steps=1"]) == 0
    assert "asks for" not in capsys.readouterr().out


@pytest.mark.parametrize("task", ["guess", "kuhn", "mix:guess+addition"])
def test_a_method_that_leaves_answers_open_is_refused_in_a_world(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is sampled: no episode of a world is open over a step."""
    assert main(["train", *SMALL, "method=t_ppo", f"task={task}"]) == 2
    said = capsys.readouterr().err
    assert "t_ppo: windowed in rollout cuts one answer" in said and "is played in turns" in said
    assert "Use a task of one answer, such as task=addition, or another method" in said and "Traceback" not in said


def test_settings_of_environments_are_refused_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "task.window=2", "steps=1"]) == 2
    assert "task.window=2: task=addition is not played in an environment" in capsys.readouterr().err
    assert main(["train", "task=guess", "task.format=tagz", "steps=1"]) == 2
    assert "no such format" in capsys.readouterr().err


def test_a_world_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(
        """
from gruppo.envs import Seen

class Echo:
    def reset(self, task):
        self.word, self.turn = task.answer, 0
        return Seen("say " + self.word, state="begin")

    def step(self, action):
        self.turn += 1
        done = self.turn == 3
        return Seen("again", state=str(self.turn), valid=bool(action), rewards={"task": 1.0} if done else {}, done=done)
"""
    )
    lines = [json.dumps({"env": "./mine.py:Echo", "prompt": f"task {i}", "answer": str(i)}) for i in range(20)]
    Path("levels.jsonl").write_text("\n".join(lines))
    assert main(["train", *SMALL, "task=./levels.jsonl", "save.name=a"]) == 0
    assert rows("a")[-1]["turns"] == 3 and np.isclose(rows("a")[-1]["reward"], 1)


BROKEN = """
from gruppo.envs import Seen

class Broken:
    def reset(self, task):
        RESET
        return Seen("go", state="begin")

    def step(self, action):
        raise SystemExit(3)
"""


def test_a_world_that_raises_in_reset_is_refused_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("raises_in_reset.py").write_text(BROKEN.replace("RESET", "raise RuntimeError('no door')"))
    Path("levels.jsonl").write_text(json.dumps({"env": "./raises_in_reset.py:Broken", "prompt": "go"}) + "\n")
    assert main(["train", *SMALL, "task=./levels.jsonl"]) == 2
    said = capsys.readouterr().err
    assert "levels.jsonl" in said and "line 1" in said and "raised RuntimeError in reset (no door)" in said
    assert "gruppo env check" in said


def test_a_world_that_exits_costs_its_episodes_and_not_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    Path("exits_in_step.py").write_text(BROKEN.replace("RESET", "pass"))
    lines = [json.dumps({"env": "./exits_in_step.py:Broken", "prompt": f"go {i}"}) for i in range(20)]
    Path("levels.jsonl").write_text("\n".join(lines))
    assert main(["train", *SMALL, "task=./levels.jsonl", "save.name=a", "steps=1"]) == 2  # by step zero, in a sentence
    said = "".join(capsys.readouterr())
    assert "SystemExit" in said


def test_a_model_of_characters_in_a_world_of_words_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A built-in world is played by tiny-agent unless another model is named."""
    assert main(["train", *SMALL, "model=tiny", "task=household", "steps=1", "save.name=a"]) == 0
    assert "model=tiny reads single characters" in capsys.readouterr().out
    assert main(["train", *SMALL, "model=tiny-agent", "task=household", "steps=1", "save.name=b"]) == 0
    assert "single characters" not in capsys.readouterr().out


@pytest.mark.parametrize("model", ["tiny", "tiny-agent"])
def test_in_the_world_of_programs_no_built_in_policy_is_advised(model: str) -> None:
    """Neither an easier level nor more turns would help."""
    said = unread_words(load_tokenizer(model), model, "python", "python")
    assert "was never shown the world python" in said and "Use a language model" in said and "Use model=" not in said
    assert not unread_words(load_tokenizer("tiny-agent"), "tiny-agent", "mix:lake+guess", "lake+guess")


def test_settings_of_the_model_do_not_name_another_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A built-in world is played by tiny-agent also on another device or with another adapter."""
    for given, wanted in [
        (("task=household", "model.device=cpu"), "tiny-agent"),
        (("task=household", "model=tiny", "model.device=cpu"), "tiny"),
        (("task=household", "model.name=tiny"), "tiny"),
        (("task=addition", "model.device=cpu"), "tiny"),
    ]:
        assert overrides.apply(RunConfig(), given).model.name == wanted


def test_episodes_in_which_nothing_was_said_pass_step_zero() -> None:
    """Their turns have no texts, and the text of the episode is still the dialogue."""
    turns = [SimpleNamespace(text="", state=f"s{i}", sequence=0, start=4 + i, stop=4 + i) for i in range(2)]
    written = SimpleNamespace(ids=np.arange(6), source=np.full(6, Source.ENV))
    silent: Any = SimpleNamespace(turns=turns, sequences=[written], text="> \nno\n> \nno")
    assert _says(load_tokenizer("tiny-agent"), silent)
