"""A reward function of the user's that fails: a status and a sentence, never a reward of 0 (pitfalls 21 and 26)."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from train_runs import checkpoint, contents, gruppo, metrics, resume_command, same_run, saved, straight, train

from gruppo.data import Episode, Status
from gruppo.data.store import load_episodes
from gruppo.train import trainer
from gruppo.train.progress import Display
from gruppo.train.run import Run

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
# An answer that cannot be judged, a worker that is killed, one that dies; the others fail as one of these does, and
# tests/tasks/test_judge.py tells them apart.
OFTEN = [pytest.param(how, marks=() if how in ("raises", "hangs", "exits") else pytest.mark.slow) for how in BROKEN]
SETTINGS = ("prompts=2", "samples=2", "steps=4", "save.checkpoint_every=3", "eval.every=0", "eval.prompts=2")
OWN = ("task.reward=./reward.py:score", "task.seconds=0.4")


@pytest.mark.parametrize("how", OFTEN)
def test_from_the_start(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, says = BROKEN[how]
    Path("reward.py").write_text(code)
    assert train("b", *SETTINGS, *OWN) == 2
    words = capsys.readouterr().err
    assert says in words and "0% of the answers got a reward" in words and "Fix it" not in words
    assert "Correct the scorer, so that it gives every answer a reward" in words
    assert "start it again" in words and not Path("runs/b").exists()
    Path("reward.py").write_text(GOOD)
    assert train("b", *SETTINGS, *OWN, "task.seconds=5", "steps=1") == 0


@pytest.mark.parametrize("how", OFTEN)
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
        train("b", "prompts=8", "samples=8", "steps=3", "task.reward=./reward.py:score", "save.episodes_every=1") == 0
    )
    words = capsys.readouterr().out
    assert "episodes failed and were left out. First error:" in words
    assert words.count("no luck today") == 2, "in its line and in its message, once a run"
    assert words.count("More of this kind are counted as `failed` in the lines of steps.") == 1
    assert all("  failed 0." in line for line in words.splitlines() if line.startswith("step 3/"))
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


def test_a_kind_of_error_is_told_once_whatever_numbers_and_texts_it_names() -> None:
    said: list[str] = []
    run = object.__new__(Run)
    run.config, run.say, run.told_errors = SimpleNamespace(max_failures=0.5), said.append, set()  # type: ignore[assignment]
    for what in ("{} is nan", "KeyError: 'row {}'", "The scorer raised:\n  line {}\nValueError: no"):
        for number in range(3):
            run.stop_if_failing(0.1, [Episode(0, "t", "g", 0, [], [], error=what.format(number))])
    assert len(said) == 3 and "First error: 0 is nan" in said[0] and "KeyError: 'row 0'" in said[1]
    for number in range(20):
        run.stop_if_failing(0.1, [Episode(0, "t", "g", 0, [], [], error="no " + "x" * number)])
    assert len(said) == 5, "errors that never repeat are counted only"
    with pytest.raises(ValueError, match=r"First error: 9 is nan \(as above\)"):
        run.stop_if_failing(0.6, [Episode(0, "t", "g", 0, [], [], error="9 is nan")])


def test_failures_are_in_the_lines_of_steps_from_the_first_one_on(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display("a", 3)
    for step, failed in enumerate((0.0, 0.25, 0.0), 1):
        display._next = 0.0
        display.update(step, {"reward": 1.0, "failed": failed})
    assert [" failed " in line for line in capsys.readouterr().out.splitlines()] == [False, True, True]


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
    assert (
        "2 answers to held-out prompts could not be judged: not counted (held_out/failed). First error: The scorer"
        in words
    )
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
