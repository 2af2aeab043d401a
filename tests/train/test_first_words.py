"""What a run says when it cannot learn, and where a user goes wrong first."""

import json
import os
from pathlib import Path

import pytest
from train_runs import gruppo, train

from gruppo.api.runs import SavedRun
from gruppo.train.folder import RunFolder
from gruppo.train.opening import told, what_is_saved
from gruppo.train.stop import Stop

QUICK = ("steps=1", "eval.prompts=2", "save.episodes_every=0")


def test_greedy_samples_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("b", *QUICK, "sampling.temperature=0") == 0
    assert "warning: sampling.temperature=0: all answers to a prompt are the same" in capsys.readouterr().out


def test_a_right_answer_in_a_sentence_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": f"{a}+{a}=", "answer": str(2 * a)[:1]} for a in range(60, 90)]
    Path("data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert train("b", *QUICK, "task=./data.jsonl", "task.reward=exact", "sampling.max_tokens=5") == 0
    words = capsys.readouterr().out
    assert "warning: no answer is right, but" in words and "contain the reference, such as '1' in '1" in words
    assert "choose another task.reward" in words


def test_a_busy_machine_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    assert train("a", *QUICK) == 0
    assert "other processes use the cores" not in capsys.readouterr().out  # one thread waits for nobody
    assert train("b", *QUICK, "threads=2") == 0
    assert "other processes use the cores (load 99.0 on" in capsys.readouterr().out


def test_a_score_is_not_called_an_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    Path("reward.py").write_text("def score(task, text):\n    return 3.0 + len(text)")
    assert train("b", *QUICK, "task.reward=./reward.py:score") == 0
    assert "held-out score " in (words := capsys.readouterr().out) and "in 1 step, " in words


def test_a_score_between_0_and_1_is_not_called_an_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    Path("reward.py").write_text("def score(task, text):\n    return 0.1 * len(text)")
    assert train("b", *QUICK, "task.reward=./reward.py:score", "save.best=true") == 0
    assert gruppo("eval", "runs/b") == 0
    words = capsys.readouterr().out + repr(SavedRun("runs/b"))
    assert words.count("held-out score ") == 3 and "  score " in words and "runs/b on addition: score " in words
    assert "accuracy" not in words


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("train", "method=./own.py"), "It has: MINE. Write method=./own.py:NAME."),
        (("eval", "runs/nothing"), "runs/nothing: there is no such run or folder, so there is nothing to evaluate"),
        (("eval", "runs/frist"), "there is no such run or folder (nearest: first)"),
        (("eval", "runs/begun/policy"), "runs/begun has no policy yet"),
        (("eval", "nothing"), "neither a built-in name nor a folder"),
        (("train", "save.every=5"), "(nearest: save.checkpoint_every, save.episodes_every)"),
        (("train", "task=guess", "task.options.turns=many"), "task.options.turns='many' is no whole number >= 1"),
        (("train", "method=latr", "method.rollout.lookaheads=4,2"), "write lookaheads=2,4."),
        (("train", "method=latr", "method.rollout.eta=then({})"), "'then({})' says nothing about any step"),
        (
            ("train", "method=latr", "method.rollout.eta=then({})"),
            "Write then({0: linear(0.0, 1.0, steps=20), 20: 1.0})",
        ),
        (("train", "method=spiral", "task=guess"), "guess has one seat"),
        (("tarin",), "there is no command 'tarin'. Did you mean train?"),
        (("train", "--method", "dapo"), "Write method=VALUE."),
        (("train", "run.toml"), "For a run file: --config run.toml."),
        (("train", "num_generations=4"), "that is samples here"),
        (("train", "learning_rate=1e-5"), "that is optim.lr here"),
    ],
)
def test_wrong_names(argv: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.py").write_text("from gruppo.methods.grpo import GRPO\nMINE = GRPO.but(name='mine')\n")
    for name in ("first", "begun"):
        Path(f"runs/{name}").mkdir(parents=True)
    for name in ("config.toml", "environment.json"):
        Path(f"runs/begun/{name}").write_text("")
    assert gruppo(*argv) == 2
    assert says in capsys.readouterr().err


def test_a_model_of_worlds_on_sums_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("b", *QUICK, "model=tiny-agent", "task=addition") == 0
    assert "was never shown a task such as addition" in capsys.readouterr().out


def test_an_edited_configuration_of_the_wrong_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("b", *QUICK) == 0
    path = Path("runs/b/config.toml")
    for before, after, says in (
        ('steps = ""', "steps = 40", "steps=40 is not text"),
        ("seed = 0", 'seed = "x"', "seed='x' is not a number"),
        ("best = false", "best = 3", "best=3 is not true or false"),
    ):
        text = path.read_text()
        assert before in text, before
        path.write_text(text.replace(before, after))
        assert gruppo("train", "--resume", "runs/b", "--allow-changes") == 2
        words = capsys.readouterr().err
        assert says in words and "runs/b/config.toml" in words
        path.write_text(text)


@pytest.mark.parametrize("error", [ValueError("other data"), OSError(28, "full"), RuntimeError("tool")])
def test_after_an_error_what_to_mend_comes_before_the_command(tmp_path: Path, error: Exception) -> None:
    """The command alone meets the same error; after a signal, and where nothing was started, it does not."""
    folder = RunFolder(tmp_path / "a")
    for started in (False, True):
        if started:
            folder.path.mkdir()
            folder["config.toml"].touch()
        with pytest.raises((ValueError, RuntimeError)) as caught, told(folder, Stop()):
            raise error
        words = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())]).splitlines()[-1]
        assert ("Mend that first" in words) == started == ("--resume" in words)
        assert words.startswith("Mend that first" if started else "Nothing was started: once that is fixed")
    assert "Mend" not in what_is_saved(folder) and "--resume" in what_is_saved(folder)
