"""Examples of the documentation run."""

import json
from pathlib import Path

import pytest
from doc_blocks import blocks, run

from gruppo.cli import main
from gruppo.methods import method
from gruppo.train.metrics import known

SMALL = ("model=tiny-random", "steps=2", "prompts=2", "samples=4", "eval.prompts=4", "save.tensorboard=no")


@pytest.mark.parametrize(
    "page", ["index.md", "tour.md", "evaluation.md", "engine.md", "environments.md", "agent-policy.md"]
)
def test_page_runs(page: str) -> None:
    assert len(blocks(page)) > 0
    run(page)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The file of add-a-method.md, in a folder of its own, and the path a user would type there."""
    monkeypatch.chdir(tmp_path)
    [text] = blocks("add-a-method.md", title="mine.py")
    assert len(text.splitlines()) <= 40
    Path("mine.py").write_text(text)
    return "./mine.py:MINE"


def test_own_method_is_shown(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "show", mine]) == 0
    said = capsys.readouterr().out
    assert "credit: GroupNormalised(eps=1e-06) → HalfWay(eps=1e-06)" in said


def test_own_method_keeps_the_laws(mine: str) -> None:
    laws = pytest.importorskip("gruppo.lab.laws")
    broken = {law: said for law, said in laws.check_laws(method(mine), seeds=(0,)).items() if said}
    assert not broken


@pytest.mark.parametrize("settings", [("method={mine}",), ("method=dapo", "method.credit={mine}.credit")])
def test_own_method_trains(mine: str, settings: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *(s.format(mine=mine) for s in settings), *SMALL, "--json"]) == 0
    folder = Path(json.loads(capsys.readouterr().out.splitlines()[-1])["folder"])
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows] == [0, 1, 2]
    assert [k for r in rows for k in r if not known(k)] == []
    assert (folder / "code" / "mine.py").read_text() == Path("mine.py").read_text()
