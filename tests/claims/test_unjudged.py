"""What a file must have before the seeds of its verdict are run; what is judged already stays as it is."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from claim_folder import commit, folder_with
from test_gates import RATES, TOML, pretend, result

from gruppo.cli import main
from gruppo.lab.claims import board, command, ledger
from gruppo.lab.claims.claim import PILOT_SEEDS, all_claims, read
from gruppo.lab.claims.recheck import stored_values
from gruppo.lab.claims.unjudged import decided_by, lacks, worse

BOARD = Path(__file__).parents[2] / "claims"
REASON = 'no_sweep = "both have the rate of the paper"\n'
SWEPT = TOML.replace(REASON, f"sweep = {json.dumps(RATES)}\n")
OLDER = {"otc"}  # not judged, and older than the rules: to be written anew, or to stay without a verdict


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return folder_with(TOML, tmp_path, monkeypatch)


def without(table: str) -> str:
    head, _, tail = TOML.partition(f"[[{table}]]")
    return head + tail[tail.index("[[") :]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (without("gate"), r"claims/b\.toml: it has no \[\[gate\]\].* Add one"),
        (without("mechanism"), r"claims/b\.toml: it has no \[\[mechanism\]\].* Add one"),
        (TOML.replace(REASON, ""), r"claims/b\.toml: it has no sweep.* Add sweep = .*or no_sweep = "),
    ],
)
@pytest.mark.parametrize("words", [(), ("--runs-only", "10")])
def test_what_lacks_something_is_not_run(
    here: Path, monkeypatch: Any, capsys: Any, text: str, said: str, words: tuple[str, ...]
) -> None:
    (here / "claims" / "b.toml").write_text(text)
    commit(here)
    asked = pretend(monkeypatch, drop=0.3)
    with pytest.raises(ValueError, match=said):
        for why in lacks(read(here / "claims" / "b.toml")):
            raise ValueError(f"claims/b.toml: {why}")
    assert main(["claims", "b", *words]) == 2 and asked == []
    out, err = capsys.readouterr()
    assert "claims/b.toml: it has no" in err and "not run         it has no" in out
    assert main(["claims", "b", "--pilot"]) == 0  # which is how one finds what a gate can ask for


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (REASON, "no_sweep = 3\n", "no_sweep = 3 is no text"),
        (REASON, 'no_sweep = " "\n', "is no reason"),
        (REASON, f"{REASON}sweep = {json.dumps(RATES)}\n", "Take one of them out"),
        (REASON, f'{REASON}not_best = "x"\n', "nothing is chosen"),
    ],
)
def test_reasons_are_texts_for_what_they_say(here: Path, old: str, new: str, said: str) -> None:
    (here / "claims" / "b.toml").write_text(TOML.replace(old, new))
    with pytest.raises(ValueError, match=said):
        read(here / "claims" / "b.toml")


def test_reasons_are_no_part_of_the_rule(here: Path) -> None:
    path = here / "claims" / "b.toml"
    path.write_text(f'{SWEPT}[chosen]\nbaseline = "{RATES[1]}"\nentrant = "{RATES[2]}"\n')
    plain = read(path).rule
    path.write_text('not_best = "the best one is unstable"\n' + path.read_text())
    assert read(path).rule == plain
    path.write_text(TOML.replace(REASON, ""))
    plain = read(path).rule
    path.write_text(TOML)
    assert read(path).rule == plain


# ---- the best point


def keep(here: Path, baseline: list[float], entrant: list[float], **other: Any) -> None:
    """A stored sweep with these means."""
    runs = [
        {"arm": arm, "text": text, "setting": s, "values": {"last(held_out)": [mean] * 5}}
        for arm, text, means in (("baseline", "grpo", baseline), ("entrant", "rloo", entrant))
        for s, mean in zip(RATES, means, strict=False)
    ]
    made = {"date": "2026-11-19", "seeds": list(PILOT_SEEDS), "settings": ["steps=2"], "runs": runs}
    board.keep_pilot(here / "claims", "b", made | other)


def said(here: Path, baseline: int = 1, entrant: int = 2, more: str = "", old: str = "", new: str = "") -> list[str]:
    chosen = f'[chosen]\nbaseline = "{RATES[baseline]}"\nentrant = "{RATES[entrant]}"\n'
    (here / "claims" / "b.toml").write_text(more + SWEPT.replace(old, new) + chosen)
    return list(worse(read(here / "claims" / "b.toml"), board.pilots_of(here / "claims", "b")))


def test_the_best_point_of_the_stored_sweep_is_chosen(here: Path) -> None:
    assert "no stored pilot has last(held_out) of 'grpo'" in said(here)[0] and "--pilot" in said(here)[0]
    keep(here, [0.1, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.1])
    assert said(here) == []
    [why] = said(here, baseline=2)
    assert "[chosen] of baseline is optim.lr=1e-3" in why and "optim.lr=1e-4: 0.3" in why
    assert "Choose optim.lr=1e-4; or give not_best" in why
    assert said(here, baseline=2, more='not_best = "it is unstable"\n') == []
    assert len(said(here, baseline=2, entrant=1)) == 2
    assert "the lower the better" in said(here, old='kind = "higher"', new='kind = "lower"')[0]


def test_only_a_whole_sweep_with_these_settings_counts_and_the_newest_one(here: Path) -> None:
    keep(here, [0.1, 0.3, 0.2], [0.1, 0.2, 0.3])  # points were added since
    assert "no stored pilot" in said(here)[0]
    keep(here, [0.1, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.1], settings=["steps=3"])
    assert "no stored pilot" in said(here)[0]
    keep(here, [0.1, 0.2, 0.3, 0.1], [0.1, 0.2, 0.3, 0.1])
    assert len(said(here)) == 1
    keep(here, [0.1, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.1])
    assert said(here) == []
    keep(here, [0.1], [0.2])
    assert said(here) == []


def test_of_what_is_to_be_small_the_smallest(here: Path) -> None:
    path = here / "claims" / "b.toml"
    for kind, lower in (("lower", True), ("at_most", True), ("higher", False), ("not_worse", False)):
        path.write_text(TOML.replace('kind = "higher"', f'kind = "{kind}"'))
        assert decided_by(read(path)) == ("last(held_out)", lower)
    path.write_text(TOML.replace('kind = "higher"', 'kind = "not_worse"\nbetter = "lower"'))
    assert decided_by(read(path)) == ("last(held_out)", True)
    path.write_text('sweep_by = "best(held_out)"\n' + TOML.replace('kind = "higher"', 'kind = "lower"'))
    assert decided_by(read(path)) == ("best(held_out)", False)


def test_a_choice_that_is_not_the_best_is_not_run(here: Path, monkeypatch: Any, capsys: Any) -> None:
    keep(here, [0.1, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.1])
    said(here, baseline=2)
    commit(here)
    asked = pretend(monkeypatch, drop=0.3)
    for words in ((), ("--runs-only", "10")):
        assert main(["claims", "b", *words]) == 2 and asked == []
        assert "claims/b.toml: [chosen] of baseline is optim.lr=1e-3" in " ".join(capsys.readouterr().err.split())


def test_another_machine_may_have_no_record(here: Path, monkeypatch: Any) -> None:
    """It makes the runs only; the record is where they are judged."""
    said(here)
    asked = pretend(monkeypatch, drop=0.3)
    assert main(["claims", "b", "--runs-only", "10"]) == 0 and len(asked) == 3  # two of gates
    assert not (here / "claims" / ledger.NAME).exists()
    commit(here)
    assert main(["claims", "b"]) == 2 and len(asked) == 3


# ---- gates


def test_runs_of_gates_that_no_pilot_has_are_stored_as_one(here: Path, monkeypatch: Any) -> None:
    commit(here)
    pretend(monkeypatch, drop=0.3)
    assert main(["claims", "b"]) == 0
    claim = read(here / "claims" / "b.toml")
    [pilot] = board.pilots_of(here / "claims", "b")
    for g in result(here)["gates"]:
        assert stored_values(claim, g["arm"], g["measure"], [pilot]) == [g["values"]]
    assert [(x.what, x.how) for x in ledger.lines(here / "claims")] == [("pilot", "written"), ("result", "written")]


def test_runs_of_gates_that_a_pilot_has_are_not_stored_again(here: Path, monkeypatch: Any) -> None:
    commit(here)
    pretend(monkeypatch, drop=0.3)
    assert main(["claims", "b", "--pilot"]) == 0 == main(["claims", "b"])
    assert len(board.pilots_of(here / "claims", "b")) == 1
    drifted = command.runs_of
    monkeypatch.setattr(command, "runs_of", lambda *given: _shifted(drifted(*given)))
    (here / "claims" / "results" / "b.json").unlink()
    assert main(["claims", "b"]) == 0  # say, on another machine
    assert len(board.pilots_of(here / "claims", "b")) == 2 and board.load(here / "claims", read(Path("claims/b.toml")))


def _shifted(runs: Any) -> Any:
    for r in (r for results in runs.values() for r in results):
        r.rows[0]["held_out"] += 0.01 * math.sin(r.seed)
    return runs


def test_a_sweep_of_ones_own_changes_no_rule_and_judges_nothing(here: Path, monkeypatch: Any, capsys: Any) -> None:
    """Also after the verdict, of a file without a sweep."""
    rule, points = read(here / "claims" / "b.toml").rule, ["optim.lr=1e-4", "optim.lr=2e-4"]
    asked = pretend(monkeypatch, drop=0.3)
    assert main(["claims", "b", "--pilot", *points]) == 0 and len(asked) == 2 * len(points)
    [stored] = board.pilots_of(here / "claims", "b")
    assert [r["setting"] for r in stored["runs"] if r["arm"] == "entrant"] == points
    assert read(here / "claims" / "b.toml").rule == rule and not (here / "claims" / "results").exists()
    capsys.readouterr()
    assert main(["claims", "b", *points]) == 2 and "add --pilot" in capsys.readouterr().err


# ---- the board of the package


def test_files_that_are_not_judged_yet_have_what_a_verdict_needs() -> None:
    claims = all_claims(BOARD)
    open_ = {n: c for n, c in claims.items() if not board.path_of(BOARD, n).is_file()}
    assert {n for n, c in open_.items() if list(lacks(c))} <= OLDER
    assert not [s for n, c in open_.items() if n not in OLDER for s in worse(c, board.pilots_of(BOARD, n))]


def test_one_judged_choice_would_be_refused_today() -> None:
    """The best point, imitation alone, is the placebo of that claim: its note says so, in place of not_best."""
    claims = {n: c for n, c in all_claims(BOARD).items() if c.gates and c.sweep and board.load(BOARD, c)}
    assert [n for n, c in claims.items() if list(worse(c, board.pilots_of(BOARD, n)))] == ["chord_exact"]
