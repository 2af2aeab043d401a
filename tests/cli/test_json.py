"""`--json` prints one JSON object on stdout, and nothing else."""

import signal
from pathlib import Path
from typing import Any

import pytest
from cli_runs import SMALL, strict_json

from gruppo.cli import main
from gruppo.cli.commands import CONFIDENCE
from gruppo.methods import all_methods
from gruppo.stages import ROOMS
from gruppo.train import trainer


def said(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main([*argv, "--json"]) == code
    return strict_json(capsys.readouterr().out)


def test_train(capsys: pytest.CaptureFixture[str]) -> None:
    summary = said(capsys, "train", *SMALL, "save.name=a")
    assert summary == strict_json(Path("runs/a/summary.json").read_text())
    wanted = {"accuracy_before", "accuracy_after", "seconds", "steps", "tokens_per_second", "folder", "method", "task"}
    assert wanted <= summary.keys() and summary["folder"] == "runs/a"


def test_train_that_is_stopped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trainer.train_step

    async def train_step(run: Any, step: int) -> Any:
        signal.raise_signal(signal.SIGINT)
        return await plain(run, step)

    monkeypatch.setattr(trainer, "train_step", train_step)
    facts = said(capsys, "train", *SMALL, "save.name=a")
    assert facts == {"steps": 1, "stopped": True, "folder": "runs/a", "resume": "gruppo train --resume runs/a"}


def test_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    facts = said(capsys, "train", *SMALL, "--dry-run", "method=dapo")
    assert facts["config"]["method"]["name"] == "dapo" and facts["tokens_per_step_at_most"] == 2 * 4 * 6
    assert all(check["ok"] for check in facts["checks"]) and not Path("runs").exists()


def test_eval(capsys: pytest.CaptureFixture[str]) -> None:
    facts = said(capsys, "eval", "tiny", "eval.prompts=40", "task.level=1-2")
    assert facts["prompts"] == 40 and 0 < facts["accuracy"] < 1 and facts["by_level"].keys() == {"1", "2"}
    assert facts["task"] == "addition" and facts["policy"] == "tiny"


def test_eval_of_one_prompt_has_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "eval", "eval.prompts=1")["error"] is None


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    checks = said(capsys, "doctor", *SMALL)
    assert {"ratio", "sampler_gap", "judged", "micro_batches"} <= {check["name"] for check in checks}
    assert not Path("runs").exists()


def test_doctor_finds_something(capsys: pytest.CaptureFixture[str]) -> None:
    Path("reward.py").write_text("def score(task, text):\n    return 1 / 0")
    checks = said(capsys, "doctor", *SMALL, "task.reward=./reward.py:score", code=1)
    bad = [check for check in checks if not check["ok"]]
    assert "judged" in {c["name"] for c in bad} and any("ZeroDivisionError" in check["remedy"] for check in bad)


def test_methods(capsys: pytest.CaptureFixture[str]) -> None:
    listed = said(capsys, "methods")
    assert [m["name"] for m in listed] == list(all_methods())
    assert all(m["rooms"].keys() == set(ROOMS) and m["summary"] and m["hash"] for m in listed)
    assert all(m["doc"].startswith(m["summary"]) and m["doc"] != m["summary"] for m in listed)
    assert all(m["checked"] and m["confidence"] in CONFIDENCE for m in listed)
    assert next(m for m in listed if m["name"] == "kdrl")["cast"]["teacher"]["start"] == ""
    assert said(capsys, "methods", "list") == listed
    shown = said(capsys, "methods", "show", "dapo")
    assert shown in listed and said(capsys, "methods", "dapo") == shown
    changes = said(capsys, "methods", "diff", "grpo", "dapo")
    assert {"where": "objective.clipped_surrogate.clip_high", "before": "0.2", "after": "0.28"} in changes
    assert said(capsys, "methods", "diff", "grpo", "grpo") == []
