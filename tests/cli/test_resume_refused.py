"""What may be resumed, and what is said about the rest."""

import hashlib
import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runs import kept, refused, rows, trained
from warm import command

from gruppo.api import load
from gruppo.cli import main
from gruppo.train import trainer

OWN = """
from gruppo.methods.grpo import GRPO
from gruppo.stages.penalties import ReferenceKL
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine(ReferenceKL):
    pass

MINE = GRPO.but(name="mine", penalties=(Mine(kl_coef=0.1),))
"""


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`stopped("a", …)`: a run of two steps, stopped after the first by Ctrl-C."""
    plain = trainer.train_step

    async def train_step(run: Any, step: int) -> Any:
        if step == 0:
            signal.raise_signal(signal.SIGINT)
        return await plain(run, step)

    def make(name: str, *settings: str) -> Path:
        with monkeypatch.context() as patch:
            patch.setattr(trainer, "train_step", train_step)
            return trained(name, *settings)

    def once(name: str, *settings: str) -> Path:
        own = any("=./" in s for s in settings)
        return make(name, *settings) if own else kept(make, "stopped after 1", name, *settings)

    return once


def test_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/empty").mkdir(parents=True)
    words = refused(capsys, "train", "--resume", "runs/empty")
    assert "runs/empty is not a run folder: it has no config.toml" in words
    for named in (("train", "--resume"), ("eval",), ("episodes",)):
        words = refused(capsys, *named, "runs/emty")
        assert "runs/emty: there is no such run or folder (nearest: empty), so " in words
        assert "`gruppo runs` lists the runs that are here." in words and not Path("runs/emty").exists()
    with pytest.raises(ValueError, match=r"there is no such run or folder \(nearest: empty\)"):
        load("runs/emty")


def test_a_broken_config(stopped: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = stopped("a")
    (run / "config.toml").write_text("steps = = 2")
    assert "runs/a/config.toml is not TOML any more" in refused(capsys, "train", "--resume", "runs/a")


def test_without_a_checkpoint_it_begins_again(stopped: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = stopped("a")
    shutil.rmtree(run / "checkpoints" / "step-000001")
    assert main(["train", "--resume", "runs/a"]) == 0
    assert [row["step"] for row in rows(run)] == [0, 1, 2]


def test_changes_are_listed_and_refused(stopped: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = stopped("a")
    before = (run / "config.toml").read_text()
    changes = ("steps=3", "optim.lr=0.5", "method.penalties-=reference_kl", "method.objective.clip_high=0.3")
    said = refused(capsys, "train", "--resume", "runs/a", *changes)
    assert "steps: 2 → 3" in said and "optim.lr: 0.0001 → 0.5" in said and "--allow-changes" in said
    assert "method.objective[0].clip_high: 0.2 → 0.3" in said and "method.penalties[0].kl_coef: 0.04 → absent" in said
    assert (run / "config.toml").read_text() == before
    assert main(["train", "--resume", "runs/a", "--allow-changes", *changes]) == 0
    assert "going on with changes:" in capsys.readouterr().out
    last = rows(run)[-1]
    assert last["step"] == 3 and last["lr"] == 0.5 and "kl_ref" not in last
    assert "steps = 3" in (run / "config.toml").read_text()


def test_a_setting_that_an_older_version_did_not_have_is_no_change(
    stopped: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stopped("a")
    whole = (run / "config.toml").read_text()
    older = re.sub(r"\n\[regime\]\n(.+\n)+", "\n", whole)
    assert "regime" in whole and "regime" not in older
    (run / "config.toml").write_text(older)
    facts = json.loads((run / "environment.json").read_text())
    facts["config"] = hashlib.sha256(older.encode()).hexdigest()  # as that version wrote it
    (run / "environment.json").write_text(json.dumps(facts))
    said = refused(capsys, "train", "--resume", "runs/a", "regime.flip=1")
    assert "regime.flip: absent → 1.0" in said and "flip_every" not in said and "config.toml: edited" not in said
    assert main(["train", "--resume", "runs/a"]) == 0
    assert "going on with changes" not in capsys.readouterr().out


def test_a_change_that_cannot_be_is_refused_and_changes_nothing(
    stopped: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stopped("a")
    before = (run / "config.toml").read_text()
    assert "no 'stepz'" in refused(capsys, "train", "--resume", "runs/a", "stepz=3", "--allow-changes")
    assert "samples=1" in refused(capsys, "train", "--resume", "runs/a", "samples=1", "--allow-changes")
    assert (run / "config.toml").read_text() == before
    assert main(["train", "--resume", "runs/a"]) == 0


def test_another_number_of_threads(stopped: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = stopped("a")
    torch.set_num_threads(2)
    said = refused(capsys, "train", "--resume", "runs/a")
    assert "the run used 1 threads, this process has 2" in said and "threads=1" in said and "OMP_NUM_THREADS=1" in said
    assert main(["train", "--resume", "runs/a", "threads=1"]) == 0  # the remedy is no change of the configuration
    assert rows(run)[-1]["step"] == 2


def test_another_number_of_threads_is_a_change_that_can_be_allowed(
    stopped: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also by the words of the refusal, and for the next resume of the run."""
    run = stopped("a", "steps=3")
    torch.set_num_threads(2)
    said = refused(capsys, "train", "--resume", "runs/a")
    assert "go on with 2, which differs in the last bits: threads=2 --allow-changes" in said
    assert main(["train", "--resume", "runs/a", "threads=2", "--allow-changes"]) == 0
    assert "threads: 1 → 2" in capsys.readouterr().out and rows(run)[-1]["step"] == 3
    assert "threads = 2" in (run / "config.toml").read_text()
    torch.set_num_threads(1)
    shutil.rmtree(run / "policy")
    assert main(["train", "--resume", "runs/a"]) == 0  # with two, as it was saved


def test_a_damaged_checkpoint_is_set_aside_once_nothing_else_is_refused(
    stopped: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stopped("a")
    damaged = run / "checkpoints" / "step-000001"
    (damaged / "policy.safetensors").write_bytes(b"")
    assert "steps: 2 → 3" in refused(capsys, "train", "--resume", "runs/a", "--skip-damaged", "steps=3")
    said = refused(capsys, "train", "--resume", "runs/a", "--skip-damaged", "samples=1", "--allow-changes")
    assert "samples=1" in said and damaged.is_dir()


def test_another_reward_is_measured_anew(stopped: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """What was measured with the old one is neither the figure before training nor the best one."""
    Path("own_reward.py").write_text("def score(task, text):\n    return 1.0\n")
    run = stopped("a", "task.reward=./own_reward.py:score", "eval.every=1", "save.best=true")
    Path("own_reward.py").write_text("def score(task, text):\n    return 0.5\n")
    assert main(["train", "--resume", "runs/a", "--allow-changes"]) == 0
    said = capsys.readouterr().out
    assert "held-out score 0.500 → 0.500 since step 1 (measured anew) in 1 of 2 steps" in said
    assert "the reward has changed: measuring held-out answers anew, from step 1 on" in said
    assert [(r["step"], r["held_out"]) for r in rows(run)] == [(0, 1.0), (1, 1.0), (1, 0.5), (2, 0.5)]
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["accuracy_before"], summary["measured_since"], summary["measure"]) == (0.5, 1, "score")
    assert json.loads((run / "best/best.json").read_text()) == {"step": 1, "held_out": 0.5}
    assert main(["runs"]) == 0 and "0.500 → 0.500 since step 1" in capsys.readouterr().out
    assert main(["train", "--resume", "runs/a", "--allow-changes", "steps=3", "task.workers=1"]) == 0
    assert [r["step"] for r in rows(run)] == [0, 1, 1, 2, 3]  # how answers are judged changes no score


def test_one_change_is_one_line(stopped: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own_reward.py").write_text("def score(task, text):\n    return 1.0\n")
    stopped("a", "task.reward=./own_reward.py:score")
    said = refused(capsys, "train", "--resume", "runs/a", "task.reward=numeric")
    listed = [line for line in said.splitlines() if "→" in line]
    assert len(listed) == 1 and "task.reward: ./own_reward.py:score → numeric" in listed[0]
    assert "It was started in" not in said
    Path("own_reward.py").unlink()
    said = refused(capsys, "train", "--resume", "runs/a")
    assert "task.reward (own_reward.py)" in said and "→ absent" in said and "It was started in" not in said


def test_a_run_that_was_killed_after_it_measured_anew_does_so_again(
    stopped: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("own_reward.py").write_text("def score(task, text):\n    return 1.0\n")
    run = stopped("a", "task.reward=./own_reward.py:score")
    Path("own_reward.py").write_text("def score(task, text):\n    return 0.5\n")
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "train_step", lambda *_: exit(1))
        with pytest.raises(SystemExit):
            main(["train", "--resume", "runs/a", "--allow-changes"])
    assert main(["train", "--resume", "runs/a"]) == 0
    assert [(r["step"], r.get("held_out")) for r in rows(run)] == [(0, 1.0), (1, None), (1, 0.5), (2, 0.5)]


def test_a_finished_run(capsys: pytest.CaptureFixture[str]) -> None:
    run = trained("a")
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    capsys.readouterr()
    assert main(["train", "--resume", "runs/a"]) == 0
    said = capsys.readouterr().out
    assert "runs/a is finished: all of its 2 steps are done, so nothing was trained" in said
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before
    assert main(["train", "--resume", "runs/a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((run / "summary.json").read_text())
    command = said.split("To train longer:  gruppo ")[1].split()
    assert command == ["train", "--resume", "runs/a", "steps=4", "--allow-changes"]
    assert main(command) == 0
    longer = trained("b", "steps=4")
    assert (run / "policy/model.safetensors").read_bytes() == (longer / "policy/model.safetensors").read_bytes()
    assert [row["step"] for row in rows(run)] == [0, 1, 2, 3, 4]


def test_killed_just_before_the_end_it_is_finished_on_resume() -> None:
    run = trained("a")
    (run / "summary.json").unlink()
    assert main(["train", "--resume", "runs/a"]) == 0
    assert json.loads((run / "summary.json").read_text())["steps"] == 2


def test_nothing_is_ignored(stopped: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stopped("a")
    assert "--resume with --dry-run" in refused(capsys, "train", "--resume", "runs/a", "--dry-run")


@pytest.mark.parametrize("what", ["changed", "gone", "pointing into the run"])
def test_own_code_that_is_not_where_it_was(what: str, stopped: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.py").write_text(OWN)
    run = stopped("a", "method=./own.py:MINE")
    facts = json.loads((run / "environment.json").read_text())
    assert facts["code"]["own.py"]["from"] == str(Path("own.py").resolve())
    if what == "changed":
        Path("own.py").write_text(OWN.replace("0.1", "0.9"))
    elif what == "gone":
        Path("own.py").unlink()
    else:
        facts["code"]["own.py"]["from"] = str(run / "code/own.py")
        (run / "environment.json").write_text(json.dumps(facts))
    said = refused(capsys, "train", "--resume", "runs/a")
    assert "code/own.py" in said and "gone or has changed" in said and "--trust-code" in said
    assert main(["train", "--resume", "runs/a", "--trust-code"]) == 0
    Path("own.py").write_text(OWN)
    same = trained("b", "method=./own.py:MINE")
    assert (run / "policy/model.safetensors").read_bytes() == (same / "policy/model.safetensors").read_bytes()


def test_own_code_goes_on_with_changes(stopped: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The stored copy stays, and so does what is known of its origin."""
    Path("own.py").write_text(OWN)
    run = stopped("a", "method=./own.py:MINE")
    before = json.loads((run / "environment.json").read_text())["code"]
    assert main(["train", "--resume", "runs/a", "steps=3", "--allow-changes"]) == 0
    assert json.loads((run / "environment.json").read_text())["code"] == before
    assert (run / "code/own.py").read_text() == OWN and rows(run)[-1]["step"] == 3
    Path("own.py").unlink()
    assert "--trust-code" in refused(capsys, "train", "--resume", "runs/a")


HELPED = "from helper import COEF\nfrom deep.er import more\n" + OWN.replace("kl_coef=0.1", "kl_coef=more(COEF)")


@pytest.fixture
def helped() -> None:
    Path("own").mkdir()
    Path("own/deep").mkdir()
    Path("own/mine.py").write_text(HELPED)
    Path("own/helper.py").write_text("import json, torch\n\nCOEF = 0.1\n")
    Path("own/deep/er.py").write_text("def more(x):\n    return 2 * x\n")
    Path("own/json.py").write_text("is not imported: Python has its own")
    Path("own/idle.py").write_text("is not imported by anyone")


def test_files_that_a_method_imports_come_along(helped: None, stopped: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = stopped("a", "method=./own/mine.py:MINE")
    stored = {p.relative_to(run / "code").as_posix() for p in (run / "code").rglob("*.py")}
    assert stored == {"mine.py", "helper.py", "deep/er.py"}
    Path("own/helper.py").write_text("COEF = 0.2\n")
    said = refused(capsys, "train", "--resume", "runs/a")
    assert "code/helper.py, and helper.py where it came from is gone or has changed" in said
    (run / "code/helper.py").unlink()
    assert "helper.py" in refused(capsys, "train", "--resume", "runs/a")
    Path("own/helper.py").write_text("import json, torch\n\nCOEF = 0.1\n")
    shutil.copyfile("own/helper.py", run / "code/helper.py")
    assert main(["train", "--resume", "runs/a"]) == 0


def test_it_is_resumed_by_another_process(helped: None, stopped: Any) -> None:
    run = stopped("a", "method=./own/mine.py:MINE")
    code, said = command("train", "--resume", "runs/a")
    assert code == 0, said
    assert rows(run)[-1]["step"] == 2


def test_files_that_a_reward_imports_are_hashed(stopped: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("own_reward.py").write_text(
        "from grade import right\n\ndef score(task, text):\n    return right(task, text)\n"
    )
    Path("grade.py").write_text("def right(task, text):\n    return float(task.answer == text)\n")
    stopped("a", "task.reward=./own_reward.py:score")
    Path("grade.py").write_text("def right(task, text):\n    return 1.0\n")
    said = refused(capsys, "train", "--resume", "runs/a")
    assert "task.reward, imported (grade.py): " in said and "--allow-changes" in said


def test_a_scorer_says_what_it_writes(stopped: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("counting.py").write_text(
        "class Counting:\n    writes = ('log',)\n    def __init__(self, log, table):\n        self.log = log\n"
        "    def __call__(self, task, text):\n        open(self.log, 'a').write('x')\n        return 1.0\n"
    )
    Path("table.txt").write_text("1")
    Path("log.txt").write_text("")
    settings = ("task.reward=./counting.py:Counting", "task.args.log=./log.txt", "task.args.table=./table.txt")
    stopped("a", *settings)
    assert Path("log.txt").read_text()
    Path("table.txt").write_text("2")
    said = refused(capsys, "train", "--resume", "runs/a")
    assert "task.args.table (table.txt): " in said and "log" not in said.replace("--allow", "")
    Path("table.txt").write_text("1")
    assert main(["train", "--resume", "runs/a"]) == 0
