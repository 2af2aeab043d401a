"""A full disk, a damaged file: what was saved before stands, and the run goes on from it."""

import errno
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
from train_runs import (
    SLOW_REWARD,
    SLOWLY,
    SMALL,
    checkpoint,
    gruppo,
    hold_from,
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

from gruppo.data import files
from gruppo.train import checkpoint as writing
from gruppo.train.folder import RunFolder

FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.slow
def test_a_file_that_cannot_grow() -> None:
    """The system itself refuses to write: as on a full disk, in the middle of the weights."""
    settings = ("steps=4", "save.checkpoint_every=2", *SLOWLY)
    hold_from(checkpoint("b", 2))
    process = start("train", *SMALL, *settings, "save.name=b")
    wait_for(checkpoint("b", 2).is_dir, process)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    release()
    assert process.wait(120) == 2
    words = said()
    assert "checkpoint of step 4 could not be written" in words and "the last whole one is step-000002" in words
    assert "Free some space" in words and "Traceback" not in words
    assert saved("b") == ["step-000002"]
    assert gruppo(*resume_command(words)) == 0
    straight(*settings, reward=SLOW_REWARD)
    same_run("a", "b")


# In the middle of a checkpoint, between two, and at the end; the others are written beside one of these.
LATER = [pytest.param(where, marks=pytest.mark.slow) for where in ("episodes", "summary")]


@pytest.mark.parametrize("where", ["checkpoint", "metrics", "weights", *LATER])
def test_a_full_disk(where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(plain: Any, after: int) -> Any:
        calls = iter(range(after))

        def write(*arguments: Any, **more: Any) -> Any:
            if next(calls, None) is None:
                raise FULL
            return plain(*arguments, **more)

        return write

    settings = ("steps=4", "save.checkpoint_every=2", "save.episodes_every=2", "eval.prompts=2")
    straight(*settings)
    with monkeypatch.context() as disk:
        if where == "checkpoint":
            disk.setattr(writing, "write_tensors", full(writing.write_tensors, 4))  # three files to a checkpoint
        elif where == "metrics":
            disk.setattr(RunFolder, "append_metrics", full(RunFolder.append_metrics, 4))  # row 0 and three steps
        elif where == "episodes":
            disk.setattr(RunFolder, "write_episodes", full(RunFolder.write_episodes, 1))
        elif where == "weights":  # of the policy at the end, after two checkpoints
            disk.setattr(files, "save_file", full(files.save_file, 6))
        else:
            disk.setattr(RunFolder, "write_summary", full(RunFolder.write_summary, 0))
        capsys.readouterr()
        assert train("b", *settings) == 2
    words = capsys.readouterr().err
    done = 4 if where in ("weights", "summary") else 2
    assert "No space left on device" in words and f"Step {done} is saved: go on with" in words
    assert saved("b")[-1] == f"step-{done:06d}"
    assert gruppo(*resume_command(words)) == 0
    same_run("a", "b", keep=2)


def test_a_checkpoint_that_is_written_twice_is_never_away(monkeypatch: pytest.MonkeyPatch) -> None:
    assert train("a", "steps=1", "save.keep=1", "eval.prompts=2") == 0
    state = writing.load_checkpoint(checkpoint("a", 1))
    monkeypatch.setattr(writing, "_write", lambda *_: pytest.fail("it is there already"))
    assert writing.save_checkpoint(Path("runs/a/checkpoints"), state, keep=1) == checkpoint("a", 1)


def test_only_so_many_are_kept() -> None:
    assert train("a", "steps=4", "save.checkpoint_every=1", "save.keep=3", "eval.prompts=2") == 0
    assert saved("a") == ["step-000002", "step-000003", "step-000004"]


def test_a_damaged_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("steps=4", "save.checkpoint_every=2", "save.episodes_every=2", "eval.prompts=2")
    straight(*settings)
    shutil.copytree("runs/a", "runs/b")
    capsys.readouterr()
    for path in sorted(checkpoint("b", 4).iterdir()):
        whole = path.read_bytes()
        for content in (whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1]), None):
            path.unlink() if content is None else path.write_bytes(content)
            assert gruppo("train", "--resume", "runs/b") == 2
            words = capsys.readouterr().err
            assert f"step-000004 is damaged: {path.name} " in words and "Traceback" not in words
            assert "step-000002 before it is whole: go on with  gruppo train --resume runs/b --skip-damaged" in words
        path.write_bytes(whole)
    (checkpoint("b", 4) / "policy.safetensors").unlink()
    assert gruppo(*resume_command(words)) == 0
    assert "was set aside as damaged-step-000004" in capsys.readouterr().out
    same_run("a", "b", keep=2)
