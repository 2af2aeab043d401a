"""The best policy by held-out accuracy, and the end of a run that stops improving: both exact after a kill."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from train_runs import checkpoint, contents, gruppo, metrics, saved, straight, train

from gruppo.train import best, trainer
from gruppo.train.best import best_step
from gruppo.train.folder import RunFolder

SLOW = pytest.mark.slow
RUN = ("steps=8", "eval.every=1", "eval.prompts=6", "save.checkpoint_every=3", "save.episodes_every=0")
# Held-out accuracy by step, as the tests want it: the best is of step 4, and there are equal ones.
CURVE = [0.1, 0.3, 0.2, 0.3, 0.6, 0.5, 0.6, 0.2, 0.4]


class Killed(BaseException):
    pass


@pytest.fixture(autouse=True)
def curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracies from the list above; everything else as it is."""
    plain = trainer.Trainer._evaluate

    async def evaluated(self: Any) -> Any:
        found = await plain(self)
        object.__setattr__(found, "accuracy", CURVE[self.done])
        return found

    monkeypatch.setattr(trainer.Trainer, "_evaluate", evaluated)


@contextmanager
def killed(target: Any, name: str, when: int, after: bool) -> Iterator[None]:
    """The process dies before or after the call number `when` of a function."""
    plain, calls = getattr(target, name), iter(range(1000))

    def dying(*arguments: Any, **more: Any) -> Any:
        mine = next(calls) == when
        if mine and not after:
            raise Killed
        out = plain(*arguments, **more)
        if mine:
            raise Killed
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, name, dying)
        with pytest.raises(Killed):
            yield


def the_best(run: str) -> dict[str, Any]:
    return contents(Path("runs") / run / "best")


def test_the_first_of_equal_ones() -> None:
    scores = dict(enumerate(CURVE))
    assert best_step(scores) == 4
    assert [best_step(scores, until=s) for s in range(9)] == [0, 1, 1, 1, 4, 4, 4, 4, 4]
    assert best_step({}) is None


def test_it_is_kept_and_named() -> None:
    assert train("a", *RUN, "save.best=true", "save.checkpoint_every=1", "save.keep=9") == 0
    summary = json.loads(Path("runs/a/summary.json").read_text())
    assert (summary["best_step"], summary["best_accuracy"]) == (4, 0.6)
    assert json.loads(Path("runs/a/best/best.json").read_text()) == {"step": 4, "held_out": 0.6}
    assert train("b", *RUN, "steps=4") == 0  # the policy after four steps
    assert contents(Path("runs/a/best/policy")) == contents(Path("runs/b/policy"))
    assert not Path("runs/b/best").exists()
    # Each checkpoint has its best policy: of step 0 the untrained one, then that of step 1.
    assert [n for n in saved("a") if n.startswith("best")] == ["best-000001"]
    Path("runs/a/best/policy/model.safetensors").write_bytes(b"")
    assert "best/policy/model.safetensors" in RunFolder(Path("runs/a")).damage()


@pytest.mark.parametrize("name, when, after", [
    pytest.param("save_writers", 1, True, marks=SLOW),  # step 1: written into a draft, not yet in its place
    ("save_writers", 2, False),  # step 4: the one before is set aside, and nothing is in its place
    pytest.param("save_writers", 2, True, marks=SLOW),
    ("save_checkpoint", 1, False),  # step 6: after best/, before the checkpoint
    pytest.param("save_checkpoint", 1, True, marks=SLOW),
])  # fmt: skip
def test_a_kill_changes_nothing(name: str, when: int, after: bool) -> None:
    straight(*RUN, "save.best=true")  # runs/a
    target = trainer if name == "save_checkpoint" else best
    with killed(target, name, when, after):
        train("b", *RUN, "save.best=true")
    assert gruppo("train", "--resume", "runs/b") == 0
    assert metrics("a") == metrics("b") and saved("a") == saved("b")
    assert the_best("a") == the_best("b") and the_best("a")
    left, right = (json.loads(Path(f"runs/{run}/summary.json").read_text()) for run in ("a", "b"))
    assert (left["best_step"], left["best_accuracy"]) == (right["best_step"], right["best_accuracy"]) == (4, 0.6)
    assert not [p for p in Path("runs/b").rglob(".draft*")]


def test_going_on_before_the_best_step_finds_the_one_of_that_time() -> None:
    """Killed in step 5 with the best of step 4: the checkpoint of step 3 knows the best of step 1 only."""
    steps = ("steps=4", *RUN[1:])
    assert train("a", *steps, "save.best=true") == 0  # ends at step 4, with checkpoints 3 and 4
    assert saved("a") == ["best-000001", "step-000003", "step-000004"]
    shutil.rmtree(checkpoint("a", 4))
    with killed(trainer, "train_step", 0, False):
        gruppo("train", "--resume", "runs/a")
    assert json.loads(Path("runs/a/best/best.json").read_text()) == {"step": 1, "held_out": 0.3}
    assert gruppo("train", "--resume", "runs/a") == 0
    assert json.loads(Path("runs/a/best/best.json").read_text())["step"] == 4


# Each file once, gone for good or written again; with the slow tests both.
DAMAGED = [
    pytest.param(file, steps, marks=() if i % 2 == (steps == 4) else SLOW)
    for i, file in enumerate(["policy/model.safetensors", "policy/config.json", "best.json", "manifest.json"])
    for steps in (8, 4)
]


@pytest.mark.parametrize(("file", "steps"), DAMAGED)
def test_a_damaged_one_is_not_kept(file: str, steps: int, capsys: pytest.CaptureFixture[str]) -> None:
    """It is written again where its weights are at hand, as after step 4 of 4; else the run says that it is gone."""
    settings = (*RUN, "save.best=yes", f"steps={steps}")
    straight(*settings)
    shutil.copytree("runs/a", "runs/b")
    path = Path("runs/b/best", file)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    capsys.readouterr()
    assert gruppo("train", "--resume", "runs/b") == 0
    said = " ".join(capsys.readouterr().out.split())
    if steps == 4:
        assert the_best("b") == the_best("a") and "is gone" not in said
    else:
        assert "the best policy so far, of step 4, is gone" in said and the_best("b") != the_best("a")
    assert not RunFolder(Path("runs/b")).damage()


def test_what_is_gone_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with killed(trainer, "train_step", 7, False):  # the checkpoint of step 6 remains
        train("a", *RUN, "save.best=true")
    shutil.rmtree("runs/a/best")
    assert gruppo("train", "--resume", "runs/a") == 0
    assert "the best policy so far, of step 4, is gone" in capsys.readouterr().out
    assert json.loads(Path("runs/a/best/best.json").read_text())["step"] == 6


def mark(run: str = "a") -> dict[str, Any]:
    return json.loads(Path(f"runs/{run}/best/best.json").read_text())


def test_switched_on_later_it_keeps_what_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Step 1 had no policy kept; from then on the best of the later steps stays, however often the run is stopped."""
    monkeypatch.setattr("test_best.CURVE", [0.1, 0.9, 0.2, 0.3, 0.8, 0.5, 0.6, 0.7, 0.8])
    run = (*RUN, "save.checkpoint_every=2", "save.keep=9")
    with killed(trainer, "train_step", 2, False):
        train("a", *run)
    for warned in (True, False):  # from step 2 on until step 5, then from step 4 on until step 7
        with killed(trainer, "train_step", 3, False):
            gruppo("train", "--resume", "runs/a", "save.best=true", "--allow-changes")
        assert ("of step 1, is gone" in capsys.readouterr().out) == warned
        assert mark() == {"step": 4, "held_out": 0.8}
    assert gruppo("train", "--resume", "runs/a") == 0
    assert mark()["step"] == 4 and "is gone" not in capsys.readouterr().out
    summary = json.loads(Path("runs/a/summary.json").read_text())
    assert (summary["best_step"], summary["best_accuracy"]) == (4, 0.8)


def test_switched_off_for_a_while_it_keeps_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    with killed(trainer, "train_step", 3, False):  # step 1 is the best one
        train("a", *RUN, "save.best=true")
    kept = the_best("a")
    change = ("save.checkpoint_every=1", "--allow-changes")
    with killed(trainer, "train_step", 4, False):  # step 4 would be the best one, and 7 is worse than step 1
        gruppo("train", "--resume", "runs/a", "save.best=false", *change)
    assert the_best("a") == kept
    with killed(trainer, "train_step", 0, False):
        gruppo("train", "--resume", "runs/a", "save.best=true", *change)
    assert "of step 4, is gone" in (words := " ".join(capsys.readouterr().out.split())), words
    assert "the best one that is left is of step 1" in words and the_best("a") == kept
    assert gruppo("train", "--resume", "runs/a", "save.best=true", *change) == 0
    assert mark() == {"step": 8, "held_out": 0.4}


def test_no_more_policies_wait_than_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_best.CURVE", [i / 10 for i in range(9)])
    most, plain = [], trainer.Trainer._save

    def saving(self: Any, done: int) -> None:
        plain(self, done)
        most.append(len([n for n in saved("a") if n.startswith("best")]))

    monkeypatch.setattr(trainer.Trainer, "_save", saving)
    for keep in (1, 3):
        run = (*RUN, "save.best=true", "save.checkpoint_every=1", f"save.keep={keep}")
        with killed(trainer, "train_step", 7, False):
            train("a", *run)
        shutil.rmtree(checkpoint("a", 7))
        assert max(most) <= keep and len(most) == 7
        if keep > 1:  # goes on from the checkpoint before, with its best policy
            with killed(trainer, "train_step", 0, False):
                gruppo("train", "--resume", "runs/a")
            assert mark()["step"] == 6
        shutil.rmtree("runs/a")
        most.clear()


# patience


def test_patience_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("a", *RUN, "eval.patience=3") == 0
    assert "ended early: 3 evaluations without a better held-out accuracy than 0.600 of step 4" in " ".join(
        capsys.readouterr().out.split()
    )
    summary = json.loads(Path("runs/a/summary.json").read_text())
    assert summary["steps"] == 7 and summary["accuracy_after"] == CURVE[7]
    assert train("b", *RUN, "eval.patience=2") == 0
    assert json.loads(Path("runs/b/summary.json").read_text())["steps"] == 3  # 0.2 and 0.3 are not better than 0.3
    assert train("c", *RUN, "eval.patience=9") == 0
    assert "ended_early" not in json.loads(Path("runs/c/summary.json").read_text())


def test_patience_counts_on_after_a_kill() -> None:
    assert train("a", *RUN, "eval.patience=3") == 0
    with killed(trainer, "train_step", 6, False):  # one evaluation before it would end
        train("b", *RUN, "eval.patience=3")
    assert gruppo("train", "--resume", "runs/b") == 0
    assert metrics("a") == metrics("b") and saved("a") == saved("b")


def test_patience_without_evaluations_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("a", *RUN, "eval.patience=3", "eval.every=0") == 2
    assert "eval.patience=3 with eval.every=0" in capsys.readouterr().err
