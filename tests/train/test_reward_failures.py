"""A reward function of the user's that fails: a status and a sentence, never a reward of 0 (pitfalls 21 and 26)."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from train_runs import checkpoint, contents, gruppo, metrics, resume_command, same_run, saved, straight, train

from gruppo.data import Status
from gruppo.data.store import load_episodes
from gruppo.train import trainer

GOOD = """
def score(task, text):
    return float(text.strip() == task.answer)
"""
BROKEN = {
    "raises": ("def score(task, text):\n    return 1 / 0", "ZeroDivisionError"),
    "hangs": ("import time\ndef score(task, text):\n    time.sleep(60)", "Judging took longer than 0.4 s"),
    "nan": ("def score(task, text):\n    return float('nan')", "returned nan"),
    "text": ("def score(task, text):\n    return 'good'", "returned 'good' (str)"),
    "wrong count": ("def score(tasks, texts):\n    return [1.0]", "returned 1 values for"),
    "exits": ("import os\ndef score(task, text):\n    os._exit(3)", "exit code 3"),
}
SETTINGS = ("prompts=2", "samples=2", "steps=4", "save.checkpoint_every=3", "eval.every=0", "eval.prompts=2")
OWN = ("task.reward=./reward.py:score", "task.seconds=0.4")


@pytest.mark.parametrize("how", BROKEN)
def test_from_the_start(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, says = BROKEN[how]
    Path("reward.py").write_text(code)
    assert train("b", *SETTINGS, *OWN) == 2
    words = capsys.readouterr().err
    assert says in words and "0% of the answers got a reward" in words
    assert "start it again" in words and not Path("runs/b").exists()
    Path("reward.py").write_text(GOOD)
    assert train("b", *SETTINGS, *OWN, "task.seconds=5", "steps=1") == 0


@pytest.mark.parametrize("how", BROKEN)
def test_in_the_middle(how: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails from step 3 on. Step 3 is not learned from; fixed, the run goes on as if nothing had been."""
    code, says = BROKEN[how]
    Path("reward.py").write_text(GOOD)
    straight(*SETTINGS, *OWN, reward=GOOD)
    plain = trainer.train_step

    async def train_step(run: Any, step: int) -> Any:
        if step == 2:
            Path("reward.py").write_text(code)
            run.judge.close()  # a scorer is loaded once; so that the next one reads the file again
        return await plain(run, step)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "train_step", train_step)
        assert train("b", *SETTINGS, *OWN) == 2
    words = capsys.readouterr().err
    assert "step 3: 100% of the episodes of this step could not be judged" in words and says in words
    assert "the step was not learned from" in words and "Step 2 is saved: go on with" in words
    assert [row["step"] for row in metrics("b")] == [0, 1, 2] and saved("b") == ["step-000002"]
    Path("reward.py").write_text(GOOD)
    assert gruppo(*resume_command(words)) == 0
    same_run("a", "b")


def test_still_broken_on_resume(capsys: pytest.CaptureFixture[str]) -> None:
    """Refused, and refused again: nothing is learned, nothing is lost."""
    code = "def score(task, text):\n    return 1 / 0 if Path('broken').exists() else 1.0"
    Path("reward.py").write_text("from pathlib import Path\n" + code)
    assert train("b", *SETTINGS, *OWN) == 0
    Path("broken").touch()
    extend = ("train", "--resume", "runs/b", "steps=6", "--allow-changes")
    assert gruppo(*extend) == 2
    before = contents(checkpoint("b", 4))
    assert gruppo("train", "--resume", "runs/b") == 2
    assert "step 5: 100% of the episodes" in capsys.readouterr().err
    assert contents(checkpoint("b", 4)) == before
    Path("broken").unlink()
    assert gruppo("train", "--resume", "runs/b") == 0
    assert metrics("b")[-1]["step"] == 6


def test_sometimes(capsys: pytest.CaptureFixture[str]) -> None:
    """One answer in ten fails: the run goes on, says so, and those answers have no reward."""
    unlucky = """
from hashlib import sha256

def score(task, text):
    if sha256((task.uid + text).encode()).digest()[0] % 10 == 0:
        raise RuntimeError(f"no luck today with {task.prompt}")
    return float(text.strip() == task.answer)
"""
    Path("reward.py").write_text(unlucky)
    assert (
        train("b", "prompts=8", "samples=8", "steps=2", "task.reward=./reward.py:score", "save.episodes_every=1") == 0
    )
    words = capsys.readouterr().out
    assert "episodes failed and were left out. First error:" in words and "no luck today" in words
    assert words.count('raise RuntimeError(f"no luck today') == 1 and re.search(
        r"First error: RuntimeError: no luck today with .*= \(as above\)", words
    ), "another answer is no other error: its lines are shown once"
    assert "worker.py" not in words and "scorer(*given)" not in words  # the author's own lines only
    rows = metrics("b")[1:]
    assert all(0 < row["failed"] < 0.5 for row in rows)
    for row in rows:
        episodes = load_episodes(Path(f"runs/b/episodes/step-{row['step']:06d}.arrow"))
        failed = [e for e in episodes if e.status == Status.ENV_ERROR]
        assert failed and all(e.reward == {} and "no luck today" in e.error for e in failed)
        assert len(failed) / 64 == row["failed"]
        right = [e.reward["task"] for e in episodes if e.status != Status.ENV_ERROR]
        assert row["accuracy"] == pytest.approx(sum(right) / len(right))


HELD_OUT_FAILS = """
from pathlib import Path
from gruppo.tasks import load_task

HELD_OUT = {task.uid for task in load_task("addition").held_out[:2]}

def score(task, text):
    if Path("broken").exists() and task.uid in HELD_OUT:
        raise KeyError(task.uid)
    return 1.0
"""


def test_held_out_answers_that_fail_say_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of training are judged, so nothing else would say it."""
    Path("reward.py").write_text(HELD_OUT_FAILS)
    Path("broken").touch()
    assert train("b", *SETTINGS, *OWN, "task.seconds=5", "eval.prompts=4", "steps=1") == 0
    words = capsys.readouterr().out
    assert "2 answers to held-out prompts could not be judged, and do not count. First error: The scorer" in words
    assert words.count("raise KeyError(task.uid)") == 1 and "First error: KeyError: 'addition" in words
    assert gruppo("eval", "runs/b", "eval.prompts=4") == 0
    words = capsys.readouterr().out
    assert "failed 2" in words and "first error: The scorer raised" in words and "KeyError: 'addition" in words


def test_evaluation_that_fails_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Held-out answers cannot be judged, those of training can: the first step has not even begun."""
    Path("reward.py").write_text(HELD_OUT_FAILS)
    Path("broken").touch()
    assert train("b", *SETTINGS, *OWN, "task.seconds=5") == 2
    words = capsys.readouterr().err
    assert "none of 2 held-out answers could be judged" in words and "KeyError" in words
    assert "No step is saved yet, so it begins again: go on with" in words
    Path("broken").unlink()
    assert gruppo(*resume_command(words)) == 0
    assert json.loads(Path("runs/b/summary.json").read_text())["steps"] == 4
