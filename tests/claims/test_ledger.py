"""No result and no pilot can be edited unseen: what follows from values, and the ledger of what was written."""

import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gruppo.cli import main
from gruppo.lab.claims import board, ledger
from gruppo.lab.claims.claim import Claim, read

BOARD = Path(__file__).parents[2] / "claims"
Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one claim, its result and its pilots, in a ledger of its own."""
    for path in ("copo_exact.toml", "results/copo_exact.json", "pilots/copo_exact.json"):
        (tmp_path / "claims" / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(BOARD / path, tmp_path / "claims" / path)
    monkeypatch.chdir(tmp_path)
    assert [line.how for line in ledger.adopt(Path("claims"))] == ["adopted"] * 2
    return Path("claims")


def claim(here: Path) -> Claim:
    return read(here / "copo_exact.toml")


def change(path: Path, edit: Edit) -> None:
    body = json.loads(path.read_text())
    edit(body)
    path.write_text(json.dumps(body, indent=1) + "\n")


def values(body: dict[str, Any]) -> None:
    body["conditions"][0]["entrant"] = [0.9999] * 10


def both(body: dict[str, Any]) -> None:
    """Values that the mean follows."""
    c = body["conditions"][0]
    c["entrant"][0] += 1e-3
    c["mean"] += 1e-4


def audit(body: dict[str, Any]) -> None:
    """Everything that an audit changed at once, and that was accepted."""
    values(body)
    body["conditions"][0] |= {"mean": 7.0}
    body["gates"][0] |= {"values": [0.1] * 5}
    body |= {"curves": {}, "commit": "0" * 40, "date": "2020-01-01"}


RESULT: list[tuple[Edit, str]] = [  # what is edited, and the field that the refusal names
    (values, r"conditions\[0\]\.(mean|low|high|how) is"),
    (both, r"conditions\[0\]\.(mean|low) is"),
    (lambda b: b["conditions"][0].update(mean=7.0), r"conditions\[0\]\.mean is 7\.0, and by the rule and the values"),
    (lambda b: b["conditions"][0].update(low=0.4), r"conditions\[0\]\.low is 0\.4"),
    (lambda b: b["conditions"][0].update(high=None), r"conditions\[0\]\.high is None"),
    (lambda b: b["conditions"][0].update(how="t"), r"conditions\[0\]\.how is 't'"),
    (lambda b: b["conditions"][0].update(size=0.01), r"conditions\[0\]\.size is 0\.01"),
    (lambda b: b["conditions"][0].update(measure="best(reward)"), r"conditions\[0\]\.measure is"),
    (lambda b: b["conditions"][0].update(entrant=[0.9] * 9), r"conditions\[0\] has 9 and 10 values for 10 seeds"),
    (lambda b: b["conditions"][0].update(entrant=["x"] * 10), "is no result of a claim"),
    (lambda b: b["gates"][0].update(values=[0.1] * 5), r"gates\[0\]\.values of last\(reward\) are in no stored pilot"),
    (lambda b: b["gates"][0].update(seeds=[1, 2, 3, 4, 5]), r"gates\[0\]\.seeds"),
    (lambda b: b.update(seeds=list(range(1, 11))), "seeds are"),
    (lambda b: b.update(curves={}), r"curves are of \[\]"),
    (lambda b: b["curves"]["entrant"].pop("reward"), r"curves\.entrant has no reward"),
    (
        lambda b: b["curves"]["entrant"]["reward"]["mean"].__setitem__(-1, 0.99),
        r"entrant\.reward ends at 0\.99",
    ),
    (lambda b: b["curves"]["entrant"]["reward"]["mean"].append(0.9), r"curves\.entrant\.reward is no curve"),
    (lambda b: b["curves"]["baseline"]["reward"]["low"].__setitem__(-1, 0.1), "has another interval"),
    (lambda b: b.update(commit="0" * 40), "commit is '0000"),
    (lambda b: b.update(commit="main"), "commit is 'main', which is none"),
    (lambda b: b.update(date="soon"), "date is 'soon'"),
    (lambda b: b.update(claim="copo"), "claim is 'copo'"),
    (lambda b: b["arms"].update(entrant="rloo"), "arms is"),
    (lambda b: b["settings"].append("steps=9"), "settings is"),
    (lambda b: b.update(seconds=-1), "seconds is -1"),
    (lambda b: b.update(verdict="inconclusive"), "verdict says 'inconclusive'"),
    (lambda b: b.update(rule="0" * 16), "was judged by the rule 0000"),
    (audit, "changed by hand"),
]


@pytest.mark.parametrize(("edit", "said"), RESULT)
def test_an_edited_result_is_refused_by_what_follows_from_it(here: Path, edit: Edit, said: str) -> None:
    path = here / "results" / "copo_exact.json"
    change(path, edit)
    with pytest.raises(ValueError, match=rf"claims/results/copo_exact\.json.*{said}"):
        board.load(here, claim(here))
    lines = [ledger.Line(**json.loads(text)) for text in (here / ledger.NAME).read_text().splitlines()]
    assert lines[0].record == ("result", "copo_exact") and lines[0].sha256 != ledger.digest(path.read_bytes())


@pytest.mark.parametrize(
    "edit",
    [
        lambda b: b.update(date="2026-11-01"),
        lambda b: b.update(commit="a" * 40),
        lambda b: b.update(seconds=1.0),
        lambda b: b["curves"]["entrant"]["entropy"]["mean"].__setitem__(0, 9.0),
        lambda b: b.update(more=1),
    ],
)
def test_what_nothing_follows_from_is_in_the_ledger(here: Path, edit: Edit) -> None:
    change(here / "results" / "copo_exact.json", edit)
    with pytest.raises(ValueError, match=r"changed after its runs.*git checkout claims/results.*gruppo claims copo"):
        board.load(here, claim(here))


NO_VALUES = '{"pilots": [{"runs": [{"arm": "baseline", "text": "a", "setting": "", "values": {"last(reward)": 3}}]}]}'


def test_an_edited_pilot_is_refused_before_anything_runs(here: Path, capsys: Any) -> None:
    path = here / "pilots" / "copo_exact.json"
    change(path, lambda b: b["pilots"][0]["runs"][0]["values"]["last(reward)"].__setitem__(0, 0.1))
    for words in (["claims"], ["claims", "--show"], ["claims", "copo_exact", "--pilot"], ["claims", "copo_exact"]):
        assert main(words) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "claims/pilots/copo_exact.json was changed after its runs" in said
        assert "run gruppo claims copo_exact --pilot" in said
    for text in ("{}", "{", '{"pilots": [3]}', '{"pilots": [{"runs": [{"arm": "baseline"}]}]}', NO_VALUES):
        path.write_text(text)
        ledger.append(here, "pilot", "copo_exact", text.encode())
        with pytest.raises(ValueError, match=r"holds no pilots.* Take it back from git"):
            board.pilots_of(here, "copo_exact")


def test_a_file_without_a_line_is_refused_until_it_is_adopted(here: Path, capsys: Any) -> None:
    (here / ledger.NAME).unlink()
    with pytest.raises(ValueError, match=r"has no line in claims/ledger\.jsonl.*adopt copo_exact"):
        board.load(here, claim(here))
    assert ledger.main(["adopt", "copo_exact"]) == 0 and "adopted pilot copo_exact" in capsys.readouterr().out
    assert board.load(here, claim(here))
    assert ledger.main(["adopt"]) == 0 and "0 new lines, 2 in all" in capsys.readouterr().out
    assert ledger.main(["adopt", "nobody"]) == 2 and "has no result or pilot of that name" in capsys.readouterr().err
    change(here / "results" / "copo_exact.json", lambda b: b.update(more=1))
    assert ledger.main(["adopt", "copo_exact"]) == 0  # there is a line already, so that nothing is adopted
    with pytest.raises(ValueError, match="changed after its runs"):
        board.load(here, claim(here))


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda rows: rows[1:], "line 1: it does not continue"),
        (lambda rows: [rows[0], *rows[2:]], "line 2: it does not continue"),
        (lambda rows: [rows[1], rows[0], *rows[2:]], "line 1: it does not continue"),
        (lambda rows: [*rows[:2], rows[3], rows[2]], "line 3: it does not continue"),
        (lambda rows: [rows[0].replace("adopted", "written"), *rows[1:]], "line 2: it does not continue"),
        (lambda rows: [*rows[:2], "<<<<<<< HEAD", *rows[2:]], "line 3: '<<<<<<< HEAD' is no line"),
        (lambda rows: [*rows, "{}"], "line 5: '{}' is no line"),
        (lambda rows: rows[:-1], "changed after its runs"),
        (lambda rows: [], "has no line in"),
    ],
)
def test_lines_that_were_deleted_or_swapped(here: Path, edit: Callable[[list[str]], list[str]], said: str) -> None:
    for value in (1.0, 2.0):
        board.keep_pilot(here, "other", {"values": [value]})
    path = here / ledger.NAME
    path.write_text("".join(f"{row}\n" for row in edit(path.read_text().splitlines())))
    with pytest.raises(ValueError, match=said):
        board.pilots_of(here, "other")


def test_an_end_without_a_newline_is_refused(here: Path) -> None:
    (here / ledger.NAME).write_bytes((here / ledger.NAME).read_bytes()[:-1])
    with pytest.raises(ValueError, match="it has no end"):
        ledger.lines(here)


def test_what_is_written_is_read_again_and_has_its_line(here: Path) -> None:
    for value in (1.0, float("inf")):
        board.keep_pilot(here, "other", {"values": [value]})
    assert board.pilots_of(here, "other") == [{"values": [1.0]}, {"values": [None]}]
    new = ledger.lines(here)[2:]
    assert [(line.what, line.name, line.how) for line in new] == [("pilot", "other", "written")] * 2
    assert new[1].sha256 == ledger.digest((here / "pilots" / "other.json").read_bytes())
    assert new[1].before == ledger.digest(new[0].text)


def test_the_board_is_read_where_nothing_can_be_written(here: Path) -> None:
    before = sorted(here.rglob("*"))
    for path in (here, *before):
        path.chmod(stat.S_IRUSR | (stat.S_IXUSR if path.is_dir() else 0))
    try:
        assert board.load(here, claim(here)) and board.pilots_of(here, "copo_exact")
        assert sorted(here.rglob("*")) == before
    finally:
        for path in (here, *before):
            path.chmod(path.stat().st_mode | stat.S_IWUSR)


def test_a_result_says_where_it_was_judged() -> None:
    machine = board.machine()
    assert machine["cores"] >= 1 and machine.get("load", 0.0) >= 0
    assert board.machine_in_words({"machine": {"cores": 2, "load": 1.93}}) == "2 cores, load 1.93 at the end"
    assert board.machine_in_words({"machine": {"cores": 2}}) == "2 cores"
    assert board.machine_in_words({"cores": 2}) == ""  # older than the field
