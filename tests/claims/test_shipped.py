"""The board of claims comes with the package: it is shown wherever gruppo is installed, and judged only in a folder."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gruppo.cli import main
from gruppo.lab.claims import claim

ROOT = Path(__file__).parents[2]
BOARD = ROOT / "claims"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package without its repository, as a wheel leaves it, and a user in an empty folder."""
    package = tmp_path / "lib" / "gruppo" / "lab" / "claims"
    shutil.copytree(BOARD, package / claim.SHIPPED)
    monkeypatch.setattr(claim, "__file__", str(package / "claim.py"))
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    return package / claim.SHIPPED


def test_the_wheel_has_the_board_where_it_is_looked_for() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"claims": f"gruppo/lab/claims/{claim.SHIPPED}"}
    assert Path(claim.__file__).parent == ROOT / "src" / "gruppo" / "lab" / "claims"


def test_it_is_shown_and_says_so(installed: Path, capsys: Any) -> None:
    assert main(["claims", "--json"]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)["claims"]
    assert {r["name"] for r in rows} == {p.stem for p in BOARD.glob("*.toml")}
    assert {r["name"]: r["verdict"] for r in rows if r["verdict"] != "not run"} == {
        p.stem: json.loads(p.read_text())["verdict"] for p in (BOARD / "results").glob("*.json")
    }
    assert str(installed) in err
    assert main(["claims", "gdpo", "--show"]) == 0 and "## gdpo" in capsys.readouterr().out


def test_a_folder_of_ones_own_comes_first(installed: Path, capsys: Any) -> None:
    Path("claims").mkdir()
    shutil.copy(BOARD / "gdpo.toml", "claims")
    assert main(["claims", "--json"]) == 0
    out, err = capsys.readouterr()
    assert [r["name"] for r in json.loads(out)["claims"]] == ["gdpo"] and not err
    assert main(["claims", "--folder", "none"]) == 2 and "none has no claims" in capsys.readouterr().err


def test_it_is_for_reading(installed: Path, capsys: Any) -> None:
    (installed / "results" / "gdpo.json").unlink()
    for words in (["gdpo"], ["gdpo", "--pilot", "optim.lr=0.1"]):
        assert main(["claims", *words]) == 2
        assert "is for reading" in capsys.readouterr().err and not list(Path().iterdir())


def test_a_clone_shows_its_own_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert claim.board_folder(None) == BOARD.resolve()


def test_its_record_comes_with_it(installed: Path, capsys: Any) -> None:
    assert (installed / "ledger.jsonl").is_file()
    assert main(["claims", "copo_exact", "--pilot"]) == 2 and "is for reading" in capsys.readouterr().err
    path = installed / "results" / "copo_exact.json"
    path.write_text(path.read_text().replace('"seconds": 2', '"seconds": 3'))
    assert main(["claims"]) == 2 and "copo_exact.json was changed after its runs" in " ".join(
        capsys.readouterr().err.split()
    )
