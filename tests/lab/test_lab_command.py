"""`gruppo lab` as a user types it."""

import json
from pathlib import Path

import pytest

from gruppo.cli import main

SMALL = ("--rates", "0.2,0.5", "--answers", ".,a", "--right", "a", "--samples", "2")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "grpo", "rloo", *SMALL]) == 0
    out, err = capsys.readouterr()
    table = {row[0]: row[1:] for row in map(str.split, out.splitlines()) if row}
    assert "2 prompts, 2 answers each; 1 × 2 answers a step, 6 different draws; on-policy" in out
    assert "mass of every right answer after 3 steps" in out and "p=0.2: a" in out
    assert table["rloo"] and "1 of 2: grpo" in err
    line = next(x for x in out.splitlines() if x.startswith("rloo"))
    assert line.split()[1:4] == ["1.000", "1.000", "0"]


def test_json_is_all_there_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "rloo", "--json", *SMALL]) == 0
    out, err = capsys.readouterr()
    table = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    row = table["rows"][0]
    assert row["method"] == "rloo" and row["exact"] is True and not err
    assert row["figures"]["expected"] == pytest.approx(table["true"], abs=1e-9)
    assert len(table["parameters"]) == len(table["true"]) and row["figures"]["prompts"][0]["mass"].keys() == {"", "a"}


@pytest.mark.parametrize("name", ["out.png", "deep/out.svg"])
def test_picture(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "grpo", "disco", "--plot", name, *SMALL]) == 0
    assert Path(name).stat().st_size > 5000 and f"picture: {name}" in capsys.readouterr().out


def test_a_method_with_settings_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "grpo", "grpo method.objective.mean=token", "--steps", "0", *SMALL]) == 0
    assert "grpo objective.mean=token" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv, said",
    [
        (["lab"], "or --all"),
        (["lab", "grpo", "--all"], "or --all"),
        (["lab", "grop"], "nearest: grpo"),
        (["lab", " "], "method='' is not known"),
        (["lab", "grpo", "--rates", "0.1;0.2"], "with commas"),
        (["lab", "grpo", "--rates", "0,1"], "between 0 and 1"),
        (["lab", "grpo", "--answers", "a,b"], "Give both"),
        (["lab", "grpo", "--plot", "out.txt"], "ends in .png"),
        (["lab", "grpo", "--samples", "12"], "Use fewer samples"),
        (["lab", "grpo", "--critic", "good"], "exact or zero"),
        (["lab", "grpo optim.lr=1"], "no setting of the method"),
        (["lab", "grpo method.objective.clipped_surrogate.maen=token"], "nearest: mean"),
        (["lab", "grpo method.objective.maen=token"], "nearest: mean"),
    ],
)
def test_refusals(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert said in err and err.startswith("gruppo: ") and "Traceback" not in err and not out
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--train", "=3"), "'=3' is no setting"),
        (("--train", "steps='x"), "No closing quotation. Write NAME=VALUE"),
        (("--train", "steps=1 seeds=abc"), "seeds=abc: no run"),
        (("--train", "steps=1 seeds=10**9"), "seeds=10**9: no run"),
        (("--train", "steps=1 seeds=1000000000"), "Use at most 48,828 seeds"),
        (("--train", "steps=1 seeds=1 samples=1000000000"), "or fewer samples"),
        (("--train", "steps=1 prompts=300"), "the world has 64 (world.prompts)"),
        (("--train", "steps=1", "--samples", "2"), "--samples beside --train: it would have no effect"),
        (("--train", "steps=1", "--off-policy", "nan", "--seed", "3"), "--off-policy, --seed beside --train"),
    ],
)
def test_training_refuses_what_it_cannot_read(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "grpo", *words]) == 2
    out, err = capsys.readouterr()
    assert said in err and not out


def test_a_method_that_cannot_be_trained_stops_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--train", "steps=1 seeds=1"]
    assert main(["lab", "archer", "rloo", *words]) == 0
    assert "archer: not done: its role critic has several outputs" in capsys.readouterr().out
    assert main(["lab", "archer", "rloo", *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [t["method"] for t in told["trained"]] == ["rloo"] and set(told["not_done"]) == {"archer"}
    assert main(["lab", "archer", *words]) == 2
    assert "archer cannot be trained in an exact world: its role critic" in capsys.readouterr().err
