"""docs/exact_world.md: its Python runs, its commands are understood, its claim can be read, its tables are complete."""

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gruppo.cli import arguments, main
from gruppo.lab.claims.claim import read
from gruppo.lab.tabular import Setup, World
from gruppo.lab.tabular.command import settings
from gruppo.lab.tabular.measure import MEASURES
from gruppo.lab.tabular.train import changed

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "exact_world.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


def test_its_python_runs() -> None:
    [block] = blocks("python")
    assert len(block.splitlines()) <= 10
    exec(compile(block, "docs/exact_world.md", "exec"), {})


def test_its_commands_are_understood() -> None:
    [block] = blocks("sh")
    for line in block.splitlines():
        args = arguments(shlex.split(line)[1:])
        changes = settings(args.train)
        assert changes.pop("seeds") == 20 and changed(Setup(), changes) != Setup()


def test_its_claim_can_be_read(tmp_path: Path) -> None:
    [block] = blocks("toml")
    (tmp_path / "b.toml").write_text(f'claim = "x"\n{block}')
    assert read(tmp_path / "b.toml").gates[0].size == 0.5


def test_every_measure_and_setting_is_on_it() -> None:
    named = set(re.findall(r"`([\w@.]+)`", PAGE))
    assert set(MEASURES) <= named
    own = {f.name for f in fields(Setup)} - {"world", "optim", "seed"} | {f.name for f in fields(World)}
    assert own <= named | {"prompts"} and "world.prompts" in named


def test_the_command_trains(capsys: Any) -> None:
    words = ["lab", "grpo", "bnpo", "--train", "steps=3 seeds=2 world.prompts=4 prompts=4 samples=4 noise=3 every=1"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "all seeds in one batch" in out and "seed by seed" in out and "right_entropy" in out
    assert main([*words, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["trained"][0]
    assert first["steps"] == [0, 1, 2, 3] and len(first["columns"]["falls"][0]) == 2
    assert main(["lab", "grpo", "--train", "steps"]) == 2 and "is no setting" in capsys.readouterr().err


@pytest.mark.parametrize("text, said", [("steps=0", "steps=0"), ("gradient=mean", "expected"), ("low=2", "low=2")])
def test_settings_are_checked(text: str, said: str, capsys: Any) -> None:
    assert main(["lab", "grpo", "--train", text]) == 2 and said in capsys.readouterr().err
