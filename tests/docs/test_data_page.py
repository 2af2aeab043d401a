"""The page about one's own data, and the README's section on it, do what they say."""

import json
import re
import shlex
from pathlib import Path

import pytest
from doc_blocks import ROOT, blocks, run

from gruppo.cli import main
from gruppo.tasks import load_task
from gruppo.tasks.extract import WAYS
from gruppo.tasks.load import load_object
from gruppo.tasks.scorers import SCORERS

PAGE = (ROOT / "docs" / "data.md").read_text()
SMALL = ("steps=2", "prompts=2", "samples=4", "eval.prompts=4", "save.tensorboard=no", "--json")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trained(line: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, float]]:
    """The metrics of a command of the page, made small."""
    capsys.readouterr()
    assert main([*shlex.split(line, comments=True)[1:], *SMALL]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    return [json.loads(row) for row in (Path(told["folder"]) / "metrics.jsonl").read_text().splitlines()]


def test_page_runs_and_its_rewards_train(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("data.md")
    [code] = blocks("data.md", title="reward.py")
    Path("reward.py").write_text(code)
    lines = re.findall(r"^gruppo train task=\./sums\.jsonl .*$", PAGE, re.M)
    assert len(lines) == 2
    for line in lines:
        rows = trained(line, capsys)
        assert [r["step"] for r in rows] == [0, 1, 2]
        assert any(k.startswith("reward/") for k in rows[-1]) or "reward" in rows[-1]


def test_run_file_of_the_page(folder: Path) -> None:
    import tomllib

    from gruppo.cli import overrides
    from gruppo.train.config import RunConfig

    [text] = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.M | re.S)
    task = overrides.from_toml(tomllib.loads(text), RunConfig()).task
    assert (task.name, task.template, dict(task.args)) == ("./sums.jsonl", "{question}\nAnswer:", {"tolerance": 0.01})


def test_every_scorer_and_its_arguments_are_explained() -> None:
    import inspect

    for name, (path, *_) in SCORERS.items():
        [row] = re.findall(rf"^\| `{name}` \|.*$", PAGE, re.M)
        for argument in inspect.signature(load_object(path)).parameters:
            assert argument in ("task", "text") or f"`{argument}" in row, (name, argument)
    for way in WAYS:
        assert f"`{way}`" in PAGE


def readme_commands() -> list[str]:
    text = (ROOT / "README.md").read_text()
    section = text.split("\n## Your own data")[1].split("\n## ")[0]
    return re.findall(r"^gruppo .*$", section.replace("\\\n", " "), re.M)


def test_readme_section_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "examples").symlink_to(ROOT / "examples")
    lines = readme_commands()
    assert len(lines) == 2 and "model=smollm2" in lines[1]
    assert lines[0].split("#")[0].split()[:2] == ["gruppo", "train"]
    rows = trained(lines[0], capsys)
    assert rows[-1]["step"] == 2


def test_example_file_is_what_its_script_makes() -> None:
    rows = load_object(f"{ROOT}/examples/rounded_sums.py:rows")()
    assert [json.loads(line) for line in (ROOT / "examples" / "rounded_sums.jsonl").read_text().splitlines()] == rows
    tasks = load_task(str(ROOT / "examples" / "rounded_sums.jsonl"), held_out=0.25)
    assert (len(tasks.train), len(tasks.held_out)) == (180, 60)


def test_example_rewards() -> None:
    near, fresh = (load_object(f"{ROOT}/examples/rounded_sums.py:{n}") for n in ("near", "Fresh"))
    task = next(t for t in load_task(str(ROOT / "examples" / "rounded_sums.jsonl")).train if t.answer == "150")
    assert near(task, "150") == {"task": 1.0, "near": 0.5}
    assert near(task, "It is 155.", credit=1.0) == {"task": 0.0, "near": 0.5}
    assert near(task, "17") == near(task, "no") == {"task": 0.0, "near": 0.0}
    scorer = fresh(credit=1.0, fading=0.5)
    assert [scorer(task, "150")["near"] for _ in range(3)] == [1.0, 0.5, 0.25]
