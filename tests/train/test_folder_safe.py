"""Two processes and one run folder; a scheduler's SIGTERM; a finished run that was damaged; what a run depends on."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from train_runs import (
    SLOW_REWARD,
    SLOWLY,
    SMALL,
    checkpoint,
    contents,
    gruppo,
    hold_from,
    metrics,
    refused,
    release,
    resume_command,
    said,
    same_run,
    saved,
    start,
    straight,
    train,
    wait_for,
)
from warm import SRC

from gruppo.train import lock
from gruppo.train.folder import RunFolder
from gruppo.train.lock import Lock

SETTINGS = ("steps=6", "save.checkpoint_every=3", *SLOWLY)
QUICK = ("steps=2", "eval.prompts=2", "save.episodes_every=2")


# the lock


def test_a_second_run_in_the_folder_is_told_who_holds_it(capsys: pytest.CaptureFixture[str]) -> None:
    hold_from(checkpoint("b", 3))
    process = start("train", *SMALL, *SETTINGS, "save.name=b")
    wait_for(lambda: Path("runs/b/.lock").exists() and Path("runs/b/.lock").read_text(), process)
    held = f"runs/b is in use by process {process.pid} on "
    assert held in refused(capsys, "train", *SMALL, "save.name=b")
    wait_for(checkpoint("b", 3).is_dir, process)
    assert held in refused(capsys, "train", "--resume", "runs/b")
    process.send_signal(signal.SIGINT)
    wait_for(lambda: "finishing this step" in said(), process)
    release()
    assert process.wait(120) == 0
    assert gruppo(*resume_command(said())) == 0
    straight(*SETTINGS, reward=SLOW_REWARD)
    same_run("a", "b")
    assert not Path("runs/b/.lock").exists()


def test_a_lock_ends_with_its_process() -> None:
    Path("runs/b").mkdir(parents=True)
    code = f"import os, sys; sys.path.insert(0, {SRC!r}); from pathlib import Path\n"
    code += "from gruppo.train.lock import Lock\nLock(Path('runs/b')).__enter__()\nos.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert Path("runs/b/.lock").exists()
    with Lock(Path("runs/b")):
        assert json.loads(Path("runs/b/.lock").read_text())["pid"] == os.getpid()


def test_where_files_cannot_be_locked_the_time_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "fcntl", None)
    Path("b").mkdir()
    with Lock(Path("b")):
        with pytest.raises(ValueError, match="b is in use by this process itself"), Lock(Path("b")):
            pass
        old = time.time() - lock.STALE - 1
        os.utime("b/.lock", (old, old))  # its holder is gone
        with Lock(Path("b")):
            pass
    assert not list(Path("b").iterdir())


@pytest.mark.parametrize("content", ["", "[1, 2, 3]", '"abc"', "7", "{}", "{", '{"pid": 1}'])
def test_a_lock_that_says_nothing_is_held_all_the_same(content: str) -> None:
    Path("b").mkdir()
    with Lock(Path("b")):
        Path("b/.lock").write_text(content)
        with pytest.raises(ValueError, match="b is in use by another process: two runs"), Lock(Path("b")):
            pass


def test_a_holder_renews_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "fcntl", None)
    monkeypatch.setattr(lock, "RENEWED", 0.01)
    Path("b").mkdir()
    with Lock(Path("b")):
        os.utime("b/.lock", (1, 1))
        wait_for(lambda: Path("b/.lock").stat().st_mtime > 1)


# signals


def test_sigterm_saves() -> None:
    hold_from(checkpoint("b", 3))
    process = start("train", *SMALL, *SETTINGS, "save.name=b")
    wait_for(checkpoint("b", 3).is_dir, process)
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: "finishing this step" in said(), process)
    release()
    assert process.wait(120) == 0
    done = metrics("b")[-1]["step"]
    assert f"stopped after step {done} of 6. Step {done} is saved" in said() and checkpoint("b", done).is_dir()
    assert gruppo(*resume_command(said())) == 0
    straight(*SETTINGS, reward=SLOW_REWARD)
    same_run("a", "b")


@pytest.mark.parametrize("where", ["close", "curves", "save"])
def test_twice_at_any_moment_says_how_to_go_on(
    where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also while the first one is finishing: in the last words the command is never missing."""
    from gruppo.train import trainer
    from gruppo.train.run import Run

    def twice(plain: Any) -> Any:
        def done(*arguments: Any) -> Any:
            out = plain(*arguments)
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            return out

        return done

    moments = {"close": (Run, "close"), "curves": (RunFolder, "draw_curves"), "save": (trainer, "save_checkpoint")}
    target, name = moments[where]
    with monkeypatch.context() as patch:
        patch.setattr(target, name, twice(getattr(target, name)))
        assert train("b", *QUICK) == 130
    words = capsys.readouterr().err
    assert "gruppo: stopped at once. Step 2 is saved: go on with  gruppo train --resume runs/b" in words
    assert gruppo(*resume_command(words)) == 0
    straight(*QUICK)
    same_run("a", "b")


# a finished run


@pytest.mark.parametrize("file", ["policy/model.safetensors", "summary.json", "metrics.jsonl", "config.toml"])
def test_what_a_finished_run_left_is_written_again(file: str) -> None:
    straight(*QUICK)
    shutil.copytree("runs/a", "runs/b")
    Path("runs/b", file).unlink()
    assert gruppo("train", "--resume", "runs/b") == 0
    same_run("a", "b")
    left, right = (Path("runs", run, file).read_bytes() for run in ("a", "b"))
    assert left == right.replace(b"runs/b", b"runs/a")
    assert not RunFolder(Path("runs/b")).damage()


def test_killed_before_its_curves_it_is_not_finished(picture: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(RunFolder, "draw_curves", killed)
        train("b", *QUICK)
    assert not Path("runs/b/summary.json").exists()
    assert gruppo("train", "--resume", "runs/b") == 0 and Path("runs/b/curves.png").is_file()
    Path("runs/b/curves.png").unlink()
    assert gruppo("train", "--resume", "runs/b") == 0 and Path("runs/b/curves.png").is_file()


def test_fewer_steps_than_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    straight(*QUICK)
    words = refused(capsys, "train", "--resume", "runs/a", "steps=1", "--allow-changes")
    assert "steps=1, but 2 steps are done" in words


def test_all_files_follow_the_umask() -> None:
    straight(*QUICK)
    modes = {stat.S_IMODE(p.stat().st_mode) for p in Path("runs/a").rglob("*") if p.is_file()}
    assert modes == {0o666 & ~_umask()}


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


# what a run depends on


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`half(…)`: runs/b, stopped after the first of two steps."""
    from gruppo.train import trainer

    plain = trainer.train_step

    async def train_step(run: Any, step: int) -> Any:
        signal.raise_signal(signal.SIGINT)
        return await plain(run, step)

    def make(*settings: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(trainer, "train_step", train_step)
            assert train("b", *QUICK, *settings) == 0
        assert saved("b") == ["step-000001"]

    return make


def test_another_reward_file(half: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("reward.py").write_text("def score(task, text):\n    return float(len(text))")
    half("task.reward=./reward.py:score")
    Path("reward.py").write_text("def score(task, text):\n    return -float(len(text))")
    words = refused(capsys, "train", "--resume", "runs/b")
    assert "task.reward (reward.py): " in words and "--allow-changes" in words
    assert gruppo("train", "--resume", "runs/b", "--allow-changes") == 0


def test_other_data(half: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(8)]
    Path("data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    half("task=./data.jsonl")
    Path("data.jsonl").write_text("\n".join(map(json.dumps, rows[:-1])))
    words = refused(capsys, "train", "--resume", "runs/b")
    assert "the data of task ./data.jsonl is not what it was" in words and "--allow-changes" in words
    assert gruppo("train", "--resume", "runs/b", "--allow-changes") == 0


def test_another_model_folder(half: Any, capsys: pytest.CaptureFixture[str]) -> None:
    straight(*QUICK)
    shutil.copytree("runs/a/policy", "model")
    half("model.name=./model")
    Path("model/generation_config.json").write_text("{}\n\n")
    words = refused(capsys, "train", "--resume", "runs/b")
    assert "model (model): " in words
    assert gruppo("train", "--resume", "runs/b", "--allow-changes") == 0


def test_an_edited_configuration(half: Any, capsys: pytest.CaptureFixture[str]) -> None:
    half()
    path = Path("runs/b/config.toml")
    path.write_text(path.read_text().replace("lr = 0.0001", "lr = 0.001"))
    assert "optim.lr: 0.0001 → 0.001" in refused(capsys, "train", "--resume", "runs/b")
    assert gruppo("train", "--resume", "runs/b", "--allow-changes") == 0
    assert metrics("b")[-1]["lr"] == 0.001
    assert gruppo("train", "--resume", "runs/b") == 0  # the change is a part of the run now


def test_a_configuration_that_was_edited_before_the_first_checkpoint(
    half: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    half()
    shutil.rmtree("runs/b/checkpoints")
    path = Path("runs/b/config.toml")
    path.write_text(path.read_text().replace("lr = 0.0001", "lr = 0.001"))
    assert "config.toml: edited since the run was started" in refused(capsys, "train", "--resume", "runs/b")


@pytest.mark.parametrize("name", ["config.toml", "environment.json"])
def test_what_is_missing_is_put_back(name: str, half: Any, capsys: pytest.CaptureFixture[str]) -> None:
    half()
    before = Path("runs/b", name).read_bytes()
    Path("runs/b", name).unlink()
    assert gruppo("train", "--resume", "runs/b") == 0
    assert f"{name} of runs/b was missing, and was put back from the checkpoint" in capsys.readouterr().out
    assert Path("runs/b", name).read_bytes() == before
    straight(*QUICK)
    same_run("a", "b")


def test_other_folders_are_no_checkpoints(half: Any) -> None:
    half()
    for name in ("step-abc", "step-", "notes"):
        Path("runs/b/checkpoints", name).mkdir()
    assert gruppo("train", "--resume", "runs/b") == 0


def test_a_disk_that_is_full_from_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gruppo.train import folder

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(folder, "write_text", full)
        words = refused(capsys, "train", *SMALL, *QUICK, "save.name=b")
    assert "No space left on device: runs/b/environment.json" in words and "Nothing was started" in words
    assert not contents(Path("runs"))
