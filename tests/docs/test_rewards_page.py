"""The page about rewards that take time does what it says."""

import inspect
import re
from pathlib import Path

import pytest
from doc_blocks import ROOT, blocks, run

from gruppo.cli import main
from gruppo.tasks.hangs import LEAST
from gruppo.tasks.imports import load_object
from gruppo.tasks.scorers import SCORERS
from gruppo.tasks.settings import TaskConfig

PAGE = (ROOT / "docs" / "rewards.md").read_text()
SMALL = ("steps=1", "prompts=2", "samples=4", "eval.prompts=4", "save.tensorboard=no")


def test_page_runs_and_its_rewards_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [code] = blocks("rewards.md", title="remote.py")
    Path("remote.py").write_text(code)
    run("rewards.md")
    for name in ("reward", "longest", "Client"):
        assert main(["train", f"task.reward=./remote.py:{name}", *SMALL]) == 0


def test_every_argument_and_setting_is_explained_with_its_default() -> None:
    for name in ("reward_model", "llm_judge"):
        for argument in inspect.signature(load_object(SCORERS[name][0])).parameters:
            assert re.search(rf"^\| [^|]*`{argument}`", PAGE, re.M), (name, argument)
    config = TaskConfig()
    for setting in ("seconds", "call_seconds", "start_seconds"):
        assert f"| `task.{setting}` | {getattr(config, setting):g}" in PAGE
    assert f"`task.concurrency={config.concurrency}`" in PAGE and f"After {LEAST} answers in a row" in PAGE
