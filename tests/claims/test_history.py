"""The board as git knows it. A file and its last line that were changed together are seen here only."""

import subprocess
from pathlib import Path

import pytest
from claim_folder import commit, folder_with
from claim_history import LEDGER, edited, not_grown, other_rules, why_none
from test_gates import TOML

from gruppo.lab.claims import board, ledger
from gruppo.lab.claims.claim import all_claims

ROOT = Path(__file__).parents[2]
AGAIN: dict[str, str] = {}  # results that were written twice: why


@pytest.fixture
def history() -> None:
    if why := why_none(ROOT):
        pytest.skip(why)


@pytest.mark.usefixtures("history")
def test_the_ledger_has_only_grown() -> None:
    assert list(not_grown(ROOT)) == []


@pytest.mark.usefixtures("history")
def test_each_rule_is_that_of_its_commit() -> None:
    claims = all_claims(ROOT / "claims")
    results = {n: found for n, c in claims.items() if (found := board.load(ROOT / "claims", c))}
    assert len(results) > 100 and list(other_rules(ROOT, results)) == []


@pytest.mark.usefixtures("history")
def test_no_commit_has_edited_a_result_or_a_pilot() -> None:
    """A line that was appended for an edited file is honest about its hash only."""
    assert [said for said in edited(ROOT) if not any(f"results/{n}.json" in said for n in AGAIN)] == []


def test_every_file_has_its_line_and_every_line_its_file() -> None:
    lines = ledger.lines(ROOT / "claims")
    there = {(what, p.stem) for what, sub in ledger.FOLDERS.items() for p in (ROOT / "claims" / sub).glob("*.json")}
    assert {line.record for line in lines} == there
    for what, name in there:
        assert ledger.read(ROOT / "claims", what, name)


def test_a_result_is_written_once() -> None:
    """A second line is a result that was deleted and made again: `AGAIN` says why."""
    names = [line.name for line in ledger.lines(ROOT / "claims") if line.what == "result"]
    assert {n for n in names if names.count(n) > 1} == set(AGAIN)


# ---- what it sees, in a repository of its own


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two pilots with a line each, in one commit."""
    folder_with(TOML, tmp_path, monkeypatch)
    for name in ("a", "b"):
        keep(tmp_path, name, 1.0)
    commit(tmp_path)
    assert list(not_grown(tmp_path)) == []
    return tmp_path


def keep(here: Path, name: str, value: float) -> None:
    board.keep_pilot(here / "claims", name, {"values": [value]})


def git(here: Path, *words: str) -> int:
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *names, *words], cwd=here, capture_output=True).returncode


def rewritten(here: Path, change: str) -> None:
    """The ledger after a change by hand, with a chain that is right again."""
    path = here / LEDGER
    old = ledger.lines(here / "claims")
    kept = [(x.what, x.name, x.sha256, x.how) for x in (old[:-1] if change == "last line" else old[::-1])]
    path.write_text("".join(f"{line.text}\n" for line in ledger.chained(kept)))


def test_a_file_and_its_last_line_that_were_changed_together(here: Path) -> None:
    rewritten(here, "last line")
    file = here / "claims" / "pilots" / "b.json"
    file.write_text(file.read_text().replace("1.0", "7.0"))
    ledger.append(here / "claims", "pilot", "b", file.read_bytes())
    assert board.pilots_of(here / "claims", "b") == [{"values": [7.0]}]  # the file and the ledger alone say nothing
    assert "the working tree: claims/ledger.jsonl is not that of a parent" in next(not_grown(here))
    assert git(here, "commit", "-qam", "edited") == 0
    assert "lines were changed or taken out" in next(not_grown(here))
    keep(here, "b", 2.0)
    assert git(here, "commit", "-qam", "and more") == 0
    assert next(not_grown(here))  # for good


def test_a_file_that_was_changed_and_given_a_line_more(here: Path) -> None:
    keep(here, "b", 2.0)
    assert git(here, "commit", "-qam", "one more pilot") == 0 and list(edited(here)) == []
    for name, said in (("b", "was changed, and not only extended"), ("a", "was deleted")):
        file = here / "claims" / "pilots" / f"{name}.json"
        if name == "b":
            file.write_text(file.read_text().replace("1.0", "7.0"))
            ledger.append(here / "claims", "pilot", "b", file.read_bytes())
        else:
            file.unlink()
        assert git(here, "commit", "-qam", "edited") == 0
        assert list(not_grown(here)) == [] and said in next(edited(here))
    results = here / "claims" / "results"
    results.mkdir()
    for text in ("{}", "[]"):
        (results / "b.json").write_text(text)
        assert git(here, "add", "claims") == 0 and git(here, "commit", "-qm", text) == 0
    assert "results/b.json was changed" in next(edited(here))


@pytest.mark.parametrize("change", ["last line", "swap"])
def test_a_chain_that_was_made_anew(here: Path, change: str) -> None:
    rewritten(here, change)
    assert ledger.lines(here / "claims")
    assert git(here, "commit", "-qam", "edited") == 0
    assert "lines were changed or taken out" in next(not_grown(here))


def test_a_ledger_that_was_deleted(here: Path) -> None:
    assert git(here, "rm", "-q", LEDGER) == 0 and git(here, "commit", "-qm", "gone") == 0
    assert next(not_grown(here))


def branched(here: Path, ours: str, theirs: str) -> None:
    """Two branches with a pilot each, and a merge that stops at the ledger."""
    git(here, "branch", "-q", "other")
    for name, value in ((ours, 2.0), (theirs, 3.0)):
        keep(here, name, value)
        assert git(here, "add", "claims") == 0 and git(here, "commit", "-qam", name) == 0
        if value == 2.0:
            assert git(here, "checkout", "-q", "-b", "ours") == 0 and git(here, "checkout", "-q", "other") == 0
    assert git(here, "checkout", "-q", "ours") == 0
    assert git(here, "merge", "-q", "other") == 1


def test_two_branches_are_merged_into_one_chain(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    branched(here, "c", "d")
    with pytest.raises(ValueError, match=r"is no line of a ledger.*ledger merge"):
        board.pilots_of(here / "claims", "c")
    assert ledger.main(["merge"]) == 0 and "written pilot d" in capsys.readouterr().out
    assert [line.name for line in ledger.lines(here / "claims")] == ["a", "b", "c", "d"]
    assert [board.pilots_of(here / "claims", n)[0]["values"] for n in "cd"] == [[2.0], [3.0]]
    assert git(here, "commit", "-qam", "merge") == 0 and list(not_grown(here)) == []
    assert ledger.main(["merge"]) == 2 and "git knows no conflict" in capsys.readouterr().err


def test_a_branch_that_is_merged_again_brings_only_what_is_new(here: Path) -> None:
    """The first merge has chained its lines anew, so that they are not those of the branch any more."""
    branched(here, "c", "d")
    assert ledger.main(["merge"]) == 0 and git(here, "commit", "-qam", "merge") == 0
    assert git(here, "checkout", "-q", "other") == 0
    keep(here, "e", 4.0)
    assert git(here, "add", "claims") == 0 and git(here, "commit", "-qam", "e") == 0
    assert git(here, "checkout", "-q", "ours") == 0
    assert git(here, "merge", "-q", "other") == 1 and ledger.main(["merge"]) == 0
    assert [line.name for line in ledger.lines(here / "claims")] == ["a", "b", "c", "d", "e"]
    assert git(here, "commit", "-qam", "merge") == 0 and list(not_grown(here)) == []


def test_a_merge_that_drops_the_lines_of_a_branch(here: Path) -> None:
    branched(here, "c", "d")
    assert git(here, "checkout", "--ours", LEDGER) == 0
    assert git(here, "commit", "-qam", "merge") == 0
    assert "has lost lines of a parent: ('pilot', 'd'" in next(not_grown(here))


def test_of_a_file_that_both_have_one_is_kept(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    branched(here, "a", "a")
    assert ledger.main(["merge"]) == 2 and "neither as one branch nor as the other" in capsys.readouterr().err
    assert git(here, "checkout", "--ours", "claims/pilots/a.json") == 0
    assert ledger.main(["merge"]) == 0
    assert [line.how for line in ledger.lines(here / "claims")] == ["written"] * 4 + ["merged"]
    assert board.pilots_of(here / "claims", "a")[-1] == {"values": [2.0]}
    assert git(here, "commit", "-qam", "merge") == 0 and list(not_grown(here)) == []


def test_a_rule_that_is_not_that_of_its_commit(here: Path) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True).stdout.strip()
    for found, said in (
        ({"commit": "0" * 40}, "is not in this history"),
        ({"commit": head}, "has the rule"),
    ):
        assert said in next(other_rules(here, {"b": {"rule": "x", **found}}))
    assert "has no claims/z.toml" in next(other_rules(here, {"z": {"rule": "x", "commit": head}}))


def test_without_history_there_is_a_reason(tmp_path: Path) -> None:
    assert "no git repository" in why_none(tmp_path)
