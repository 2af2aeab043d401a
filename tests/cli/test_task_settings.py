"""Settings of a task on the command line: tables of arguments, data files, and what a run says about them."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from gruppo.cli import main, overrides
from gruppo.stages.record import from_table, to_table
from gruppo.tasks.load import short_name
from gruppo.train.config import RunConfig

ROWS = [{"question": f"{a}+{b}=", "answer": a + b} for a in range(10, 20) for b in range(10, 14)]
TINY = ("steps=2", "prompts=2", "samples=4", "eval.prompts=4", "save.tensorboard=no")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("data.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    Path("reward.py").write_text("def f(task, text, scale=1.0): return scale * (text.strip() == task.answer)")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.01", 0.01),
        ("3", 3),
        ("-1e-3", -1e-3),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ('[{name="a", weight=2.0}]', [{"name": "a", "weight": 2.0}]),
        ('"7"', "7"),
        ("[0-9]+", "[0-9]+"),
        (r"Answer: (?P<answer>\d+)", r"Answer: (?P<answer>\d+)"),
        ("2026-01-01", "2026-01-01"),
        ("nan", "nan"),
        ("True", "True"),
        ("", ""),
    ],
)
def test_values_of_a_table(text: str, value: Any) -> None:
    config = overrides.apply(RunConfig(), [f"task.args.x={text}"])
    assert config.task.args == {"x": value} and type(config.task.args["x"]) is type(value)


def test_tables_survive_a_run_file() -> None:
    given = ["task.args.tolerance=0.5", "task.options.a.b=3", "task.options.a.c=[1,2]", "task.held_out=0.25"]
    config = overrides.apply(RunConfig(), given)
    again = from_table(tomllib.loads(tomli_w.dumps(to_table(config))))
    assert to_table(again) == to_table(config) and again.task.held_out == "0.25"
    written = overrides.from_toml({"task": {"held_out": 0.25, "args": {"x": 1.5}, "options": {"a": {"b": 2}}}}, config)
    assert (written.task.held_out, written.task.args) == (0.25, {"tolerance": 0.5, "x": 1.5})
    assert written.task.options == {"a": {"b": 2, "c": [1, 2]}}


# What is typed after `gruppo train`, and what the sentence must name.
REFUSED = {
    "task.args=3": ("is a table of values", "task.args.NAME=VALUE"),
    "task.args.x+=3": ("is a table of values",),
    "task.promt=q": ("no 'promt'", "nearest: prompt"),
    "task=./dat.jsonl": ("there is no file", "Did you mean 'data.jsonl'?"),
    "task=./data.csv": ("task=hf:./data.csv",),
    "task.answer=gold": ("task.answer=gold", "Fields: question, answer"),
    "task.template={questoin}": ("names the field 'questoin'", "Did you mean 'question'?"),
    "task.reward=numerc": ("Did you mean 'numeric'?",),
    "task.reward=regex": ("without a pattern", "task.args.pattern"),
    "task.args.tolerence=1": ("tolerence", "Did you mean 'tolerance'?"),
    "task.reward=./reward.py:f task.args.scal=2": ("scal=2", "Did you mean 'scale'?"),
    "task.held_out=2": ("task.held_out=2", "between 0 and 1"),
    "task.template={question}\u00e9": ("cannot be written in this model's tokens", "character"),
    "task.template={question:>300}": ("has 301 tokens", "context", "Take such rows out"),
    "task.split=test": ("has no option split",),
}


@pytest.mark.parametrize("typed", REFUSED)
def test_refused(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = typed.split() if not typed.startswith("task.template") else [typed]
    data = [] if typed.startswith("task=") else ["task=./data.jsonl"]
    assert main(["train", *data, *words, *TINY]) == 2
    said = capsys.readouterr().err
    for part in REFUSED[typed]:
        assert part in said
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_a_run_says_what_it_made_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["task=./data.jsonl", "task.reward=./reward.py:f", "task.args.scale=2", "task.held_out=0.2", "save.name=a"]
    assert main(["train", *args, *TINY]) == 0
    said = capsys.readouterr().out
    assert "40 rows; prompt=question, answer=answer" in said
    assert "32 tasks to train on, 8 held out, judged by ./reward.py:f" in said
    assert "gruppo episodes runs/a " in said and said.endswith("gruppo eval runs/a\n")
    assert main(["eval", "runs/a/policy", "--config", "runs/a/config.toml"]) == 0
    assert "data: score" in capsys.readouterr().out  # its reward is not 0 or 1


def test_a_resumed_run_notices_other_data(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["task=./data.jsonl", "save.name=a", "save.checkpoint_every=1"]
    assert main(["train", *args, *TINY]) == 0
    more = ["train", "--resume", "runs/a", "steps=3", "--allow-changes"]
    assert main(more) == 0
    assert "is not what it was" not in capsys.readouterr().out
    with Path("data.jsonl").open("a") as file:
        file.write('\n{"question": "1+1=", "answer": 2}')
    assert main([*more[:3], "steps=4", "--allow-changes"]) == 0
    assert "the data of task ./data.jsonl is not what it was" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("addition", "addition"),
        ("./data.jsonl", "data"),
        ("hf:openai/gsm8k", "gsm8k"),
        ("hf:./folder", "folder"),
        ("gym:countdown", "countdown"),
        ("./mine.py:make", "mine"),
        ("package.module:make", "package"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short
