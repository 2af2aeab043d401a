"""Runs that go on in other ways: longer, with changes, copied, from Python, with callbacks that fail."""

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from train_runs import gruppo, metrics, refused, straight, train

from gruppo.api import compare
from gruppo.cli.overrides import apply
from gruppo.train import trainer
from gruppo.train.callbacks import Callback
from gruppo.train.config import RunConfig
from gruppo.train.lock import Lock, held
from gruppo.train.stop import Stop

QUICK = ("steps=2", "eval.prompts=2", "save.episodes_every=1")


def test_a_run_that_ended_early_can_be_made_longer(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("b", "steps=9", "eval.every=1", "eval.prompts=2", "eval.patience=2", "optim.lr=1e-12") == 0
    assert metrics("b")[-1]["step"] == 2
    assert gruppo("train", "--resume", "runs/b") == 0
    advice = capsys.readouterr().out.split("To train longer:  gruppo ")[1].split()
    assert advice == ["train", "--resume", "runs/b", "eval.patience=0", "--allow-changes"]
    assert gruppo(*advice) == 0
    assert metrics("b")[-1]["step"] == 9


def test_a_finished_run_that_was_copied_is_itself(capsys: pytest.CaptureFixture[str]) -> None:
    straight(*QUICK)
    shutil.copytree("runs/a", "runs/b")
    capsys.readouterr()
    assert gruppo("train", "--resume", "runs/b", "--json") == 0
    assert json.loads(capsys.readouterr().out)["folder"] == "runs/b"


def test_episodes_of_another_past_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trainer.save_checkpoint

    def first_only(folder: Path, state: Any, keep: int) -> Any:
        return plain(folder, state, keep) if state.step < 3 else pytest.fail("pulled the plug")

    with monkeypatch.context() as patch, pytest.raises(BaseException, match="pulled the plug"):
        patch.setattr(trainer, "save_checkpoint", first_only)
        train("b", *QUICK, "steps=5", "save.checkpoint_every=2")
    assert [p.stem for p in sorted(Path("runs/b/episodes").glob("*.arrow"))][-1] == "step-000004"
    assert gruppo("train", "--resume", "runs/b", "steps=3", "seed=7", "--allow-changes") == 0
    assert [p.stem for p in sorted(Path("runs/b/episodes").glob("*.arrow"))][-1] == "step-000003"


def test_a_run_that_goes_on_is_not_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    straight(*QUICK)
    plain = trainer.train_step

    async def train_step(run: Any, step: int) -> Any:
        signal.raise_signal(signal.SIGINT)
        return await plain(run, step)

    monkeypatch.setattr(trainer, "train_step", train_step)
    assert gruppo("train", "--resume", "runs/a", "steps=9", "--allow-changes") == 0
    assert metrics("a")[-1]["step"] == 3 and not Path("runs/a/summary.json").exists()


def test_another_method_cannot_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("b", *QUICK, "method=ppo") == 0
    before = Path("runs/b/config.toml").read_text()
    words = refused(capsys, "train", "--resume", "runs/b", "method=grpo", "steps=4", "--allow-changes")
    assert "the checkpoint holds critic, policy" in words and "trains or moves policy" in words
    assert Path("runs/b/config.toml").read_text() == before


def test_another_precision_goes_on() -> None:
    straight(*QUICK)
    assert gruppo("train", "--resume", "runs/a", "model.dtype=float64", "steps=3", "--allow-changes") == 0
    assert 'dtype = "float64"' in Path("runs/a/config.toml").read_text() and metrics("a")[-1]["step"] == 3


class Opens(Callback):
    ended = 0

    def begin(self, trainer: Any, rows: Any) -> None:
        self.file = Path("log").open("w")  # noqa: SIM115

    def end(self, trainer: Any, summary: Any) -> None:
        Opens.ended += 1
        self.file.close()
        raise OSError("the log is full")


def test_a_callback_does_not_hide_why_a_run_ends(capsys: pytest.CaptureFixture[str]) -> None:
    Path("reward.py").write_text("def score(task, text):\n    raise KeyError('the reason')")
    config = apply(RunConfig(), [*QUICK, "prompts=2", "samples=2", "task.reward=./reward.py:score"])
    with pytest.raises(ValueError, match="the reason"):
        trainer.train(config, quiet=True, callbacks=[Opens()])
    good = apply(RunConfig(), [*QUICK, "prompts=2", "samples=2"])
    Opens.ended = 0
    with pytest.raises(ValueError, match="the log is full"):
        trainer.train(good, quiet=True, callbacks=[Opens(), Opens()])
    assert Opens.ended == 2


@pytest.mark.parametrize("name", [".", "..", "../x", "/tmp/x", "a\nb", "a/../../b", "a/b"])
def test_a_name_that_is_none(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is no name of a folder right inside save.folder" in refused(capsys, "train", *QUICK, f"save.name={name}")


def test_a_name_with_a_folder_in_it_says_how_to_write_that(capsys: pytest.CaptureFixture[str]) -> None:
    """`gruppo runs` would not list it."""
    said = refused(capsys, "train", *QUICK, "save.name=a/b")
    assert "save.folder=runs/a save.name=b" in said and not Path("runs/a").exists()
    assert "save.folder=runs/a save.name=b" in refused(capsys, "compare", "grpo", "rloo", "save.name=a/b")
    with pytest.raises(ValueError, match=r"right inside save\.folder"):
        compare(["grpo", "rloo"], **{"save.name": "../x"})


def test_a_missing_file_says_where_it_was_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    Path("reward.py").write_text("def score(task, text):\n    return float(len(text))")
    assert train("b", *QUICK, "task.reward=./reward.py:score") == 0
    here = Path.cwd()
    (here / "elsewhere").mkdir()
    os.chdir("elsewhere")
    words = refused(capsys, "train", "--resume", "../runs/b", "steps=4", "--allow-changes")
    assert "reward.py" in words
    words = refused(capsys, "train", "--resume", "../runs/b")
    assert "→ absent" in words and f"It was started in {here}" in words


# signals and locks


def test_stops_that_end_in_any_order_leave_nothing_behind() -> None:
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have had it ignored
    one, two = Stop(), Stop()
    one.__enter__()
    two.__enter__()
    one.__exit__()
    signal.raise_signal(signal.SIGTERM)
    assert (one.asked, two.asked) == (0, 1)
    two.__exit__()
    with pytest.raises(KeyboardInterrupt):  # of Python itself: nobody else is in the way
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before[0])
    signal.signal(signal.SIGTERM, before[1])


def test_a_fork_does_not_keep_the_lock() -> None:
    Path("b").mkdir()
    lock = Lock(Path("b"))
    lock.__enter__()
    child = os.fork()
    if not child:
        time.sleep(20)
        os._exit(0)
    try:
        lock.__exit__()
        with Lock(Path("b")):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_lock_that_went_with_its_folder_takes_no_other() -> None:
    Path("b").mkdir()
    first = Lock(Path("b"))
    first.__enter__()
    Path("b/.lock").unlink()
    Path("b").rmdir()
    with Lock(Path("b")):  # makes the folder again
        first.__exit__()
        assert Path("b/.lock").is_file()


def test_who_only_looks_at_a_lock_stops_nobody() -> None:
    fcntl = pytest.importorskip("fcntl")
    Path("b").mkdir()
    Path("b/.lock").touch()
    looking = Path("b/.lock").open()  # noqa: SIM115
    fcntl.flock(looking, fcntl.LOCK_SH)
    threading.Timer(0.06, looking.close).start()
    with Lock(Path("b")):
        assert held(Path("b"))
    assert not held(Path("b"))
