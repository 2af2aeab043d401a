"""The board of claims: a rule that stands before its runs, the command, and the page."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from claim_folder import commit, folder_with

from gruppo.cli import main
from gruppo.cli.overrides import apply
from gruppo.lab.claims import board, command, page, pictures
from gruppo.lab.claims.claim import Claim, Condition, all_claims, read
from gruppo.lab.claims.in_tables import in_exact_world
from gruppo.lab.claims.verdict import verdict
from gruppo.lab.compare import command as compare
from gruppo.lab.compare.compare import Result
from gruppo.lab.tabular.whole import provided
from gruppo.stages import Context, kind
from gruppo.stages.check import check
from gruppo.train.config import RunConfig
from gruppo.train.lock import Lock

TOML = """
claim = "B is better than A."
baseline = "grpo"
entrant = "rloo"
settings = ["steps=2"]
no_sweep = "both have the rate of the paper"

[[gate]]
measure = "last(held_out)"
kind = "at_least"
size = 0.1

[[mechanism]]
measure = "last(held_out)"
kind = "at_least"
size = 0.1

[[condition]]
measure = "last(held_out)"
kind = "higher"
size = 0.05
"""
RATES = [f"optim.lr=1e-{i}" for i in (5, 4, 3, 2)]
SWEPT = TOML.replace('no_sweep = "both have the rate of the paper"', f"sweep = {json.dumps(RATES)}")


# ---- files

ROOT = Path(__file__).parents[2]
COMMITTED = all_claims(ROOT / "claims")


@pytest.mark.parametrize("name", COMMITTED)
def test_what_a_committed_claim_says_can_be_run(name: str) -> None:
    """Rules stay as they are when occupants move: every setting of every arm leads to a method that is accepted."""
    claim = COMMITTED[name]
    swept = [f"{text} {setting}" for text in (claim.baseline, claim.entrant) for setting in claim.swept(text)]
    entrants = [compare.parsed(text) for text in (*claim.arms.values(), *swept)]
    for stage in (stage for e in entrants for stage in (*e.earlier, e.settings)):
        config = apply(RunConfig(), [*command.LEAN, *claim.settings, *stage])
        m = provided(config.method) if in_exact_world(claim) else config.method
        check(m, Context(), samples=config.samples)


def test_the_weight_of_heated_answers_is_where_it_stands_now() -> None:
    for name in ("aepo", "aepo_low", "aepo_high"):
        entrant = compare.parsed(COMMITTED[name].entrant)
        assert "method.penalties.heated_likelihood.heated_coef=16" in entrant.settings
        m = apply(RunConfig(), [*COMMITTED[name].settings, *entrant.settings]).method
        assert [o.heated_coef for o in m.objective if kind(o) == "heated_likelihood"] == [16.0] and not m.penalties


def test_a_claim_is_read_and_mistakes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text(TOML)
    claim = read(path)
    assert (claim.name, claim.method, claim.arms) == ("b", "b", {"baseline": "grpo", "entrant": "rloo"})
    for text, said in (
        (TOML.replace("size = 0.05", "size = -1"), "no run could show it"),
        (TOML.replace("higher", "highr"), "higher"),
        (TOML.replace("entrant", "entrnt"), "entrant"),
        (TOML.split("[[")[0], "no .*condition"),
        ("claim =", "b.toml"),
        (TOML.replace("0.05", "nan"), "no run could show it"),
        (TOML + 'of = "share"', "of 'share': use one of difference, ratio"),
        (TOML + 'better = "up"', "better 'up': use one of higher, lower"),
        (TOML.replace("higher", "lower").replace("0.05", "1.0") + 'of = "ratio"', "less by all it has"),
        (TOML.replace('["steps=2"]', '"steps=2"'), r"letter by letter. Write a list: \['steps=2'\]"),
        (TOML + '[chosen]\nbaselin = "optim.lr=1"', "nearest: baseline"),
        (TOML.replace("0.05", "inf"), "no run could show it. Give a finite size"),
        (TOML.replace("size = 0.05", 'size = "0.05"'), "size = '0.05' is no number"),
        (TOML.replace("size = 0.05", ""), "a condition has no size. Write size ="),
        (TOML.replace("size = 0.1", "size = true"), "size = True is no number"),
        (TOML.replace('"grpo"', "3"), "baseline = 3 is no text. Give a text"),
        ("seeds = 2.5\n" + TOML, "seeds = 2.5 is no whole number"),
        ("sweep = 5\n" + TOML, r"sweep = 5 is no list. Write a list"),
        ("chosen = 3\n" + TOML, r"chosen = 3 is no table. Write \[chosen\]"),
        ('name = "x"\n' + TOML, "name is not for a file to set"),
        ("gates = []\n" + TOML, "gates is not for a file to set .nearest: gate"),
        (TOML.replace("[[gate]]", "[gate]"), r"gate is no list of tables. Write \[\[gate\]\]"),
        (TOML.replace("last(held_out)", "mean(held_out, 0.5)"), "0.5 is no number of values"),
        (TOML.replace("last(held_out)", "mean(held_out, -3)"), "-3.0 is no number of values"),
        (f"{SWEPT.replace(RATES[0], RATES[1])}", "optim.lr=1e-4 twice"),
        ('sweep_by = "lastt(held_out)"\n' + SWEPT, "nothing of that name can be read from a run .nearest: last"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            read(path)


def test_the_rule_is_what_decides_and_nothing_else() -> None:
    plain = Claim("n", "m", "c", "a", "b", (), (Condition("last(x)", "higher", 0.05),))
    changes = {"note": "x", "pilots": ({"a": 1},), "sweep_by": "best(x)"}
    assert all(Claim(**{**vars(plain), k: v}).rule == plain.rule for k, v in changes.items())
    moved = {"baseline": "z", "settings": ("steps=3",), "conditions": (Condition("last(x)", "higher", 0.04),)}
    moved |= {"chosen": {"baseline": "optim.lr=1"}}
    assert all(Claim(**{**vars(plain), k: v}).rule != plain.rule for k, v in moved.items())


def test_those_in_the_repository_can_be_read() -> None:
    folder = Path(__file__).parents[2] / "claims"
    for claim in all_claims(folder).values():
        board.load(folder, claim)  # a result of another rule is refused
        for text in claim.arms.values():
            command.compare.parsed(text)


def test_the_page_is_written_anew_when_a_result_is() -> None:
    """`scripts/make_claims.py` does."""
    script = Path(__file__).parents[2] / "scripts" / "make_claims.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_page_says_what_was_found(tmp_path: Path) -> None:
    c = Condition("last(held_out)", "higher", 0.05)
    claim = Claim("b", "b", "B is better.", "grpo", "rloo", ("steps=2",), (c,), pilots=({"date": "today", "lr": 1e-4},))
    made = {
        arm: [Result(arm, s, "", 60.0, [{"step": 2, "held_out": base + 0.01 * s}]) for s in range(10)]
        for arm, base in (("baseline", 0.5), ("entrant", 0.6))
    }
    made["entrant"][0].rows[0]["held_out"] += 0.01
    outcome, judged = verdict(claim, {arm: [r.rows for r in results] for arm, results in made.items()})
    board.write(tmp_path, board.result(claim, outcome, judged, made, "a" * 40))
    text = page.whole(tmp_path, {"b": claim})
    assert "1 reproduced." in text and "| [b](#b) | reproduced | 10 |" in text
    assert "**Reproduced**: 10 seeds" in text and "1200 seconds of runs" in text and "date: today" in text
    assert "`last(held_out)`, method minus baseline, is at least 0.05" in text
    pictures.draw(board.load(tmp_path, claim) or {}, tmp_path / "b.png")
    assert (tmp_path / "b.png").stat().st_size > 1000


# ---- the command


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return folder_with(TOML, tmp_path, monkeypatch)


def pretend(monkeypatch: pytest.MonkeyPatch, shift: float) -> list[Any]:
    """Runs that were made already: their values, and which were asked for."""
    asked: list[Any] = []

    def runs_of(claim: Claim, arms: Any, seeds: Any, args: Any, place: str) -> Any:
        if not place.startswith("gate-"):
            asked.append((dict(arms), list(seeds), place))

        def made(arm: str, seed: int) -> Result:
            value = 0.5 + 0.01 * seed + (shift + 0.03 * math.sin(7 * seed) if arm == "entrant" else 0.0)
            return Result(arm, seed, "", 1.0, [{"step": 0, "held_out": 0.3}, {"step": 2, "held_out": value}])

        return {arm: [made(arm, seed) for seed in seeds] for arm in arms}

    monkeypatch.setattr(command, "runs_of", runs_of)
    return asked


def test_nothing_is_judged_before_the_rule_is_committed(here: Path, capsys: Any, monkeypatch: Any) -> None:
    asked = pretend(monkeypatch, 0.1)
    assert main(["claims", "b"]) == 2
    assert "in no git repository" in capsys.readouterr().err
    commit(here)
    (here / "claims" / "b.toml").write_text(TOML.replace("0.05", "0.04"))
    assert main(["claims", "b"]) == 2
    assert "Commit it first" in capsys.readouterr().err
    assert asked == []


def test_a_verdict_is_made_once(here: Path, capsys: Any, monkeypatch: Any) -> None:
    commit(here)
    asked = pretend(monkeypatch, 0.1)
    assert main(["claims", "b"]) == 0
    assert "reproduced" in capsys.readouterr().out
    found = json.loads((here / "claims" / "results" / "b.json").read_text())
    assert (found["verdict"], found["seeds"], len(found["commit"])) == ("reproduced", list(range(10)), 40)
    assert found["curves"]["entrant"]["held_out"]["step"] == [0.0, 2.0]
    assert main(["claims", "b"]) == 0 and len(asked) == 1
    assert main(["claims", "--json"]) == 0
    capsys.readouterr()
    (here / "claims" / "b.toml").write_text(TOML.replace("0.05", "0.2"))
    assert main(["claims"]) == 2
    assert "a rule is fixed before its runs" in " ".join(capsys.readouterr().err.split())


def test_a_claim_that_fails_holds_up_no_other_but_ctrl_c_does(here: Path, capsys: Any, monkeypatch: Any) -> None:
    (here / "claims" / "a.toml").write_text(TOML)
    commit(here)
    pretend(monkeypatch, 0.1)
    runs_of, error = command.runs_of, ValueError("claim a: 1 of 20 runs are missing")

    def broken(claim: Claim, *rest: Any) -> Any:
        if claim.name == "a":
            raise error
        return runs_of(claim, *rest)

    monkeypatch.setattr(command, "runs_of", broken)
    error = command.Stopped("claim a: stopped")
    assert main(["claims", "--all"]) == 2 and not (here / "claims" / "results").exists()
    error = ValueError("claim a: 1 of 20 runs are missing")
    capsys.readouterr()
    assert main(["claims", "--all"]) == 2
    out, err = capsys.readouterr()
    assert (here / "claims" / "results" / "b.json").is_file() and "1 not run, 1 reproduced" in out
    assert "claim a: 1 of 20 runs are missing" in err


def test_an_ignored_file_is_not_a_committed_one(here: Path, capsys: Any, monkeypatch: Any) -> None:
    asked = pretend(monkeypatch, 0.1)
    (here / ".gitignore").write_text("c.toml\n")
    commit(here)
    (here / "claims" / "c.toml").write_text(TOML)
    assert main(["claims", "c"]) == 2 and asked == []
    assert "Commit it first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"verdict": "not reproduced"},
            "says 'not reproduced' (yes); by its own values and the rule it is 'reproduced'",
        ),
        ({"verdict": "surely"}, "changed by hand"),
        ({"conditions": []}, "changed by hand"),
        ({"seeds": None}, "is no result of a claim: KeyError('seeds')"),
    ],
)
def test_a_result_that_was_changed_is_refused(
    here: Path, capsys: Any, monkeypatch: Any, change: dict[str, Any], said: str
) -> None:
    commit(here)
    pretend(monkeypatch, 0.1)
    assert main(["claims", "b"]) == 0
    path = here / "claims" / "results" / "b.json"
    body = json.loads(path.read_text()) | change
    path.write_text(json.dumps({k: v for k, v in body.items() if v is not None}))
    assert main(["claims"]) == 2 and said in capsys.readouterr().err
    for text in ("[]", "", "{"):
        path.write_text(text)
        assert main(["claims"]) == 2 and "b.json is no result of a claim" in capsys.readouterr().err


def test_values_are_judged_again(here: Path, capsys: Any, monkeypatch: Any) -> None:
    commit(here)
    pretend(monkeypatch, 0.1)
    assert main(["claims", "b"]) == 0
    path = here / "claims" / "results" / "b.json"
    body = json.loads(path.read_text())
    body["conditions"][0]["entrant"] = body["conditions"][0]["baseline"]
    path.write_text(json.dumps(body))
    assert main(["claims"]) == 2 and "the rule it is 'not reproduced' (no)" in capsys.readouterr().err


def test_a_run_that_never_gets_there_is_read_back(here: Path, monkeypatch: Any) -> None:
    """JSON has no infinity."""
    (here / "claims" / "b.toml").write_text(
        TOML.replace("last(held_out)", "steps_to(held_out, 0.55)").replace("higher", "lower")
    )
    commit(here)
    pretend(monkeypatch, 0.4)
    assert main(["claims", "b"]) == 0 and main(["claims"]) == 0
    [found] = json.loads((here / "claims" / "results" / "b.json").read_text())["conditions"]
    assert None in found["baseline"] and "sign test" in found["how"]


def test_two_arms_that_are_one(here: Path, capsys: Any) -> None:
    (here / "claims" / "b.toml").write_text(TOML.replace('"rloo"', '"grpo "'))
    commit(here)
    assert main(["claims", "b"]) == 2 and "compared with itself" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("entrant", "said"),
    [
        ("grpo method.credit.eps=1e-06", "claim b: baseline and entrant come to the same settings"),
        ("grpoo", "nearest: grpo"),
        ("grpo optim.lrr=1", "nearest: lr"),
    ],
)
def test_an_arm_that_cannot_be_run_is_found_before_the_runs_of_gates(
    here: Path, monkeypatch: Any, capsys: Any, entrant: str, said: str
) -> None:
    """So is one that says the same as another in other words."""
    (here / "claims" / "b.toml").write_text(TOML.replace('"rloo"', f'"{entrant}"'))
    commit(here)
    asked = pretend(monkeypatch, 0.1)
    assert main(["claims", "b"]) == 2 and asked == []
    assert said in capsys.readouterr().err


def test_two_commands_do_not_judge_one_claim_at_once(here: Path, monkeypatch: Any, capsys: Any) -> None:
    commit(here)
    asked = pretend(monkeypatch, 0.1)
    (here / "runs" / "claims" / "b").mkdir(parents=True)
    with Lock(here / "runs" / "claims" / "b"):
        for words in ((), ("--pilot",), ("--runs-only", "2")):
            assert main(["claims", "b", *words]) == 2 and asked == []
            assert "would be made twice. Wait for it" in capsys.readouterr().err
    assert main(["claims", "b"]) == 0 and not (here / "runs" / "claims" / "b").exists()


@pytest.mark.parametrize("words", [("b", "--runs-only", "-1"), ("--runs-only", "2")])
def test_runs_that_would_be_none(here: Path, capsys: Any, words: tuple[str, ...]) -> None:
    assert main(["claims", *words]) == 2 and "nothing would run" in capsys.readouterr().err


def test_what_is_open_is_run_once_more_with_twenty_seeds(here: Path, monkeypatch: Any) -> None:
    commit(here)
    asked = pretend(monkeypatch, 0.045)
    assert main(["claims", "b"]) == 0
    assert [len(seeds) for _, seeds, _ in asked] == [10, 20]
    assert json.loads((here / "claims" / "results" / "b.json").read_text())["verdict"] == "inconclusive"


def test_runs_may_be_made_elsewhere(here: Path, monkeypatch: Any) -> None:
    """Where there is no repository to judge in; what comes back is found, and not run again."""
    asked = pretend(monkeypatch, 0.1)
    assert main(["claims", "b", "--runs-only", "10"]) == 0
    assert [(len(seeds), place) for _, seeds, place in asked] == [(10, "verdict")]
    assert not (here / "claims" / "results").exists()


def test_pilots_have_seeds_of_their_own_and_judge_nothing(here: Path, capsys: Any, monkeypatch: Any) -> None:
    (here / "claims" / "b.toml").write_text(SWEPT)
    commit(here)
    asked = pretend(monkeypatch, 0.1)
    assert main(["claims", "b"]) == 2
    assert "has chosen nothing yet" in capsys.readouterr().err
    assert main(["claims", "b", "--pilot"]) == 0
    assert {tuple(seeds) for _, seeds, _ in asked} == {tuple(range(100, 105))} and len(asked) == 8
    assert "[chosen]" in capsys.readouterr().out
    assert not (here / "claims" / "results").exists()
    assert main(["claims", "--pilot"]) == 2


def test_to_show_a_claim_runs_nothing(here: Path, capsys: Any, monkeypatch: Any) -> None:
    told = '[[pilot]]\nwhat = "one try"\nbaseline = "0.1"\nentrant = "0.2"\n'
    (here / "claims" / "b.toml").write_text(SWEPT + told)
    asked = pretend(monkeypatch, 0.1)
    assert main(["claims", "b", "--show"]) == 0
    out = capsys.readouterr().out
    assert "## b\n" in out and "Counts as reproduced when" in out and "- one try; baseline: 0.1; method: 0.2" in out
    assert "**Not run yet**: a draft" in out
    assert main(["claims", "b", "--show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["claims"][0]["ready"] is False
    assert main(["claims"]) == 0
    assert "b                  not run         a draft" in capsys.readouterr().out and asked == []


def test_a_wrong_name_and_an_empty_folder(here: Path, capsys: Any) -> None:
    assert main(["claims", "c"]) == 2
    assert "no claim 'c'" in capsys.readouterr().err
    assert main(["claims", "--folder", "nowhere"]) == 2
    assert "has no claims" in capsys.readouterr().err
