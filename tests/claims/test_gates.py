"""Rules that protect a verdict: gates on pilot seeds, a placebo, stored pilots, and rules that are decided already."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from claim_folder import commit, folder_with

from gruppo.cli import main
from gruppo.cli.overrides import apply
from gruppo.data import pack, single_turn
from gruppo.lab.claims import board, command, page
from gruppo.lab.claims.claim import Claim, Condition, all_claims, read
from gruppo.lab.claims.gates import NO_REGIME, Gate
from gruppo.lab.claims.in_tables import exact_runs, in_exact_world
from gruppo.lab.claims.placebo import RandomTokens
from gruppo.lab.claims.sense import refuse_senseless
from gruppo.lab.compare import command as compare
from gruppo.lab.compare.compare import Result
from gruppo.stages import Context, Stats
from gruppo.train.config import RunConfig

ROOT = Path(__file__).parents[2]
TOML = """
claim = "B holds what A loses."
baseline = "grpo"
entrant = "rloo"
settings = ["steps=2"]
no_sweep = "both have the rate of the paper"

[[gate]]
measure = "drop(held_out)"
kind = "at_least"
size = 0.2

[[mechanism]]
measure = "mean(kept)"
kind = "at_most"
size = 0.9

[[condition]]
measure = "last(held_out)"
kind = "higher"
size = 0.05
"""
CONDITION = TOML[TOML.index("[[condition]]") :]
PLACEBO = TOML.replace('entrant = "rloo"', 'entrant = "rloo"\nplacebo = "reinforce"') + 'against = "placebo"\n'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return folder_with(TOML, tmp_path, monkeypatch)


def pretend(monkeypatch: pytest.MonkeyPatch, drop: float, kept: float = 0.5) -> list[Any]:
    """Runs that were made already; the placebo does as well as the method."""
    asked: list[Any] = []

    def runs_of(claim: Claim, arms: Any, seeds: Any, args: Any, place: str) -> Any:
        asked.append((sorted(arms), list(seeds), place))

        def made(arm: str, seed: int) -> Result:
            last = 0.5 + 0.01 * math.sin(seed) + (0.1 if arm in ("entrant", "placebo") else 0.0)
            last += 0.01 * math.sin(3 * seed) if arm == "entrant" else 0.0
            rows = [{"step": 0, "held_out": last + drop, "kept": kept}, {"step": 2, "held_out": last, "kept": kept}]
            return Result(arm, seed, "", 1.0, rows)

        return {arm: [made(arm, s) for s in seeds] for arm in arms}

    monkeypatch.setattr(command, "runs_of", runs_of)
    return asked


def result(here: Path) -> dict[str, Any]:
    return json.loads((here / "claims" / "results" / "b.json").read_text())


# ---- gates


def test_a_verdict_is_made_where_the_gates_hold(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(here)
    asked = pretend(monkeypatch, drop=0.3)
    assert main(["claims", "b"]) == 0
    pilots = list(range(100, 105))
    assert asked == [
        (["baseline"], pilots, "gate-baseline"),
        (["entrant"], pilots, "gate-entrant"),
        (["baseline", "entrant"], list(range(10)), "verdict"),
    ]
    body = result(here)
    assert body["verdict"] == "reproduced"
    assert [(g["what"], g["arm"], g["holds"], g["seeds"]) for g in body["gates"]] == [
        ("gate", "baseline", True, pilots),
        ("mechanism", "entrant", True, pilots),
    ]
    assert body["gates"][0]["values"] == pytest.approx([0.3] * 5)


@pytest.mark.parametrize("drop, kept, failed", [(0.1, 0.5, 0), (0.3, 0.95, 1)])
def test_without_the_disease_or_the_lever_nothing_is_judged(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, drop: float, kept: float, failed: int
) -> None:
    commit(here)
    asked = pretend(monkeypatch, drop, kept)
    assert main(["claims", "b"]) == 0
    assert all(place != "verdict" for _, _, place in asked)
    body = result(here)
    assert (body["verdict"], body["seeds"], body["conditions"]) == (NO_REGIME, [], [])
    assert [g["holds"] for g in body["gates"]] == [i != failed for i in range(2)]
    assert NO_REGIME in capsys.readouterr().out
    text = page.whole(here / "claims", all_claims(here / "claims"))
    assert "1 no regime found." in text and "**No regime found**" in text and "**no**" in text


def test_runs_only_stop_at_a_gate_as_the_verdict_would(here: Path, monkeypatch: Any, capsys: Any) -> None:
    asked = pretend(monkeypatch, drop=0.1)
    assert main(["claims", "b", "--runs-only", "10"]) == 2
    assert [place for _, _, place in asked] == ["gate-baseline", "gate-entrant"]
    said = " ".join(capsys.readouterr().err.split())
    assert "no regime found: baseline drop(held_out) 0.1 (at_least 0.2)." in said and "were not run" in said
    assert [p.name for p in (here / "claims").iterdir()] == ["b.toml"]


@pytest.mark.parametrize("kept", [[None, None], [0.0, 0.0]])
def test_a_gate_without_a_value_is_no_gate_that_failed(here: Path, monkeypatch: Any, capsys: Any, kept: Any) -> None:
    """A metric that is there and has no value, or a spike of nothing but zeros: nobody can say what holds."""
    (here / "claims" / "b.toml").write_text(TOML.replace("mean(kept)", "spike(kept)"))
    commit(here)

    def runs_of(claim: Claim, arms: Any, seeds: Any, *_: Any) -> Any:
        rows = [{"step": i, "held_out": 0.9 - 0.5 * i, "kept": k} for i, k in enumerate(kept)]
        return {arm: [Result(arm, s, "", 1.0, rows) for s in seeds] for arm in arms}

    monkeypatch.setattr(command, "runs_of", runs_of)
    assert main(["claims", "b"]) == 2 and not (here / "claims" / "results").exists()
    assert "spike(kept) of the entrant has no value with seed 100, 101" in " ".join(capsys.readouterr().err.split())


def test_a_result_whose_gates_were_changed_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(here)
    pretend(monkeypatch, drop=0.1)
    main(["claims", "b"])
    path, claim = here / "claims" / "results" / "b.json", read(here / "claims" / "b.toml")
    plain = result(here)
    assert board.load(here / "claims", claim) is not None
    for change in (
        {"gates": [{**plain["gates"][0], "values": [0.9] * 5}, plain["gates"][1]]},
        {"gates": [{**plain["gates"][0], "size": 0.05}, plain["gates"][1]]},
        {"gates": plain["gates"][1:]},
        {"gates": []},
        {"verdict": "reproduced"},
    ):
        path.write_text(json.dumps(plain | change))
        with pytest.raises(ValueError, match="changed by hand"):
            board.load(here / "claims", claim)


def test_gates_and_placebo_are_part_of_the_rule_and_older_rules_keep_theirs() -> None:
    plain = Claim("n", "m", "c", "a", "b", (), (Condition("last(x)", "higher", 0.05),))
    gate = Gate("drop(x)", "at_least", 0.2)
    moved = {"gates": (gate,), "mechanisms": (gate,), "placebo": "z", "seeds": 20}
    moved |= {"conditions": (Condition("last(x)", "higher", 0.05, against="placebo"),)}
    rules = [Claim(**{**vars(plain), k: v}).rule for k, v in moved.items()]
    assert len({plain.rule, *rules}) == 6
    assert plain.rule == "8a7667b99a4e31c5"  # as it was before there were gates


# ---- the placebo


def test_a_placebo_is_an_arm_and_the_method_must_beat_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "claims" / "b.toml").write_text(PLACEBO + CONDITION)
    commit(here)
    asked = pretend(monkeypatch, drop=0.3)
    main(["claims", "b"])
    assert asked[-1][0] == ["baseline", "entrant", "placebo"]
    body = result(here)
    assert body["verdict"] == "not reproduced"  # better than the baseline, and no better than the placebo
    assert [(c["against"], c["holds"]) for c in body["conditions"]] == [("placebo", "no"), ("baseline", "yes")]
    claim = read(here / "claims" / "b.toml")
    assert board.load(here / "claims", claim) == body
    text = page.of(here / "claims", claim)
    assert "Placebo `reinforce`" in text and "method minus placebo" in text


# ---- pilots


def test_pilots_are_stored_with_their_values_and_none_is_replaced(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, drop=0.3)
    (here / "claims" / "b.toml").write_text(PLACEBO)
    for times in (1, 2):
        assert main(["claims", "b", "--pilot"]) == 0
        stored = board.pilots_of(here / "claims", "b")
        assert len(stored) == times
    assert stored[0]["seeds"] == list(range(100, 105)) and stored[0]["settings"] == ["steps=2"]
    first = stored[0]["runs"][0]
    assert (first["arm"], first["text"]) == ("baseline", "grpo")
    assert [r["arm"] for r in stored[0]["runs"]] == ["baseline", "entrant", "placebo"]
    assert set(first["values"]) == {"last(held_out)", "drop(held_out)", "mean(kept)"}
    assert first["values"]["drop(held_out)"] == pytest.approx([0.3] * 5)
    assert "Stored pilots" in page.of(here / "claims", read(here / "claims" / "b.toml"))


# ---- rules that are decided already


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("size = 0.2", "size = 0", "the gate cannot fail"),
        ("size = 0.2", "size = 1.2", "the gate cannot hold"),
        ("size = 0.9", "size = 1.0", "the gate cannot fail"),
        ("size = 0.05", "size = 1", "it cannot hold"),
        ('kind = "higher"', 'kind = "not_worse"\nsize = 1.5\n#', "it cannot fail"),
        ('kind = "at_least"', 'kind = "atleast"', "at_least, at_most"),
        ('settings = ["steps=2"]', 'settings = ["steps=2"]\nplacebo = "reinforce"', "no condition is against it"),
        ('kind = "higher"', 'kind = "higher"\nagainst = "placebo"', "the file has none"),
        ('no_sweep = "both have the rate of the paper"', 'sweep = ["optim.lr=1e-3"]', "Give at least 4"),
        ('settings = ["steps=2"]', 'settings = ["steps=2"]\nseeds = 60', "those of pilots"),
        (
            '"last(held_out)"\nkind = "higher"\nsize = 0.05',
            '"drop(held_out)"\nkind = "lower"\nsize = 0.3',
            "Add a .*gate",
        ),
    ],
)
def test_a_rule_that_no_run_decides_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "b.toml"
    assert old in TOML
    path.write_text(TOML.replace(old, new).replace("\n#\nsize = 0.05", ""))
    with pytest.raises(ValueError, match=said):
        read(path)


def test_a_best_point_at_the_edge_is_refused(tmp_path: Path) -> None:
    path, rates = tmp_path / "b.toml", [f"optim.lr=1e-{i}" for i in (5, 4, 3, 2)]
    swept = TOML.replace('no_sweep = "both have the rate of the paper"', f"sweep = {json.dumps(rates)}") + "[chosen]\n"
    path.write_text(f'{swept}baseline = "{rates[1]}"\nentrant = "{rates[2]}"\n')
    assert read(path).ready
    path.write_text(f'{swept}baseline = "{rates[1]}"\nentrant = "{rates[3]}"\n')
    with pytest.raises(ValueError, match="at the edge of the sweep"):
        read(path)


RATES = [f"optim.lr=1e-{i}" for i in (5, 4, 3, 2)]
SWEPT = PLACEBO.replace('no_sweep = "both have the rate of the paper"', f"sweep = {json.dumps(RATES)}")
DEAD = SWEPT.replace(
    '"drop(held_out)"\nkind = "at_least"\nsize = 0.2', '"mean(adv_live)"\nkind = "at_most"\nsize = 0.02'
)


def test_a_placebo_has_the_point_of_the_entrant_or_its_own(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text(f'{SWEPT}[chosen]\nbaseline = "{RATES[1]}"\nentrant = "{RATES[2]}"\n')
    shared = read(path)
    path.write_text(f'{path.read_text()}placebo = "{RATES[1]}"\n')
    own = read(path)
    assert shared.ready and own.ready and shared.rule != own.rule
    assert [c.arms["placebo"] for c in (shared, own)] == [f"reinforce {RATES[2]}", f"reinforce {RATES[1]}"]
    path.write_text(path.read_text().replace(f'placebo = "{RATES[1]}"', f'placebo = "{RATES[0]}"'))
    with pytest.raises(ValueError, match=r"of placebo is optim\.lr=1e-5, at the edge"):
        read(path)


def test_an_arm_without_a_gradient_needs_no_sweep(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own rate stays, it is tried once, and the file is ready without a choice for it."""
    path = here / "claims" / "b.toml"
    path.write_text(DEAD.replace('"grpo"', '"grpo optim.lr=1e-3"'))
    asked = pretend(monkeypatch, drop=0.3)
    assert not read(path).ready
    assert main(["claims", "b", "--pilot"]) == 0
    places = [place for _, _, place in asked]
    assert [sum(arm in p for p in places) for arm in ("baseline", "entrant", "placebo")] == [1, 4, 4]
    assert set(board.pilots_of(here / "claims", "b")[0]["chosen"]) == {"entrant", "placebo"}
    path.write_text(f'{path.read_text()}[chosen]\nentrant = "{RATES[1]}"\n')
    assert read(path).ready and read(path).arms["baseline"] == "grpo optim.lr=1e-3"


ALIVE = DEAD.replace("size = 0.02", "size = 0.5", 1)


@pytest.mark.parametrize("text, arm", [(SWEPT, '"grpo"'), (ALIVE, '"grpo"'), (DEAD, '"rloo"')])
def test_another_arm_must_be_swept(tmp_path: Path, text: str, arm: str) -> None:
    path = tmp_path / "b.toml"
    path.write_text(text.replace(arm, f'{arm[:-1]} optim.lr=1e-3"'))
    with pytest.raises(ValueError, match=r"sets optim\.lr itself, so that it has no sweep"):
        read(path)


@pytest.mark.parametrize("name, said", [("llds", "Add a .*gate.*drop"), ("t_ppo", "window_tokens=8 of the entrant")])
def test_two_judged_rules_would_be_refused_today(tmp_path: Path, name: str, said: str) -> None:
    """One asked for less of what the baseline hardly had, one for what its own setting made sure of."""
    shutil.copy(ROOT / "claims" / f"{name}.toml", tmp_path)
    with pytest.raises(ValueError, match=said):
        read(tmp_path / f"{name}.toml")
    refuse_senseless(read(ROOT / "claims" / "gdpo.toml"))
    assert read(ROOT / "claims" / f"{name}.toml").name == name  # judged: it stays as it is


def test_a_sum_over_steps_is_not_bounded_by_a_setting_of_a_step(tmp_path: Path) -> None:
    text = (ROOT / "claims" / "t_ppo.toml").read_text()
    total = text.replace('"mean(longest)"', '"spent_to(longest, held_out, 0.6)"')
    assert total != text
    (tmp_path / "t_ppo.toml").write_text(total)
    assert read(tmp_path / "t_ppo.toml").conditions[1].measure.startswith("spent_to")


# ---- in an exact world

EXACT = """
claim = "B learns faster than A."
baseline = "dr_grpo"
entrant = "grpo"
settings = [
    "task=gruppo.lab.tabular:exact", "task.options.prompts=4", "task.options.answers=4", "task.options.right=1",
    "task.options.noise=4", "steps=6", "prompts=4", "samples=4", "optim.lr=0.1", "eval.every=2",
]
no_sweep = "a table, and a rate at which both learn"

[[gate]]
measure = "last(reward)"
kind = "at_most"
size = 0.999

[[mechanism]]
measure = "last(reward)"
kind = "at_most"
size = 0.999

[[condition]]
measure = "last(reward)"
kind = "higher"
size = 0.001
"""


def test_a_claim_is_judged_in_an_exact_world(here: Path, capsys: Any) -> None:
    path = here / "claims" / "b.toml"
    path.write_text(EXACT)
    assert in_exact_world(read(path))
    assert main(["claims", "b", "--pilot"]) == 0
    assert "5 seeds, together" in capsys.readouterr().out
    commit(here)
    assert main(["claims", "b"]) == 0
    body = result(here)
    assert body["verdict"] in ("reproduced", "not reproduced", "inconclusive")
    assert len(body["seeds"]) in (10, 20) and body["gates"][0]["holds"]
    assert {"reward", "entropy"} <= set(body["curves"]["baseline"])
    assert body["curves"]["baseline"]["reward"]["step"] == [0, 2, 4, 6]
    again = json.dumps(body["conditions"])
    (here / "claims" / "results" / "b.json").unlink()
    assert main(["claims", "b"]) == 0 and json.dumps(result(here)["conditions"]) == again


def test_noise_beyond_all_bounds_stays_so(here: Path) -> None:
    """Where one draw leaves no signal the noise is infinite, in the runs that are read again, too."""
    (here / "claims" / "b.toml").write_text(EXACT.replace("task.options.noise=4", "task.options.noise=2"))
    claim = read(here / "claims" / "b.toml")
    arms = {"baseline": compare.parsed("dr_grpo")}
    once, again = (exact_runs(claim, arms, range(6), here / "runs", quiet=True) for _ in range(2))
    noise = [row["noise"] for r in once["baseline"] for row in r.rows]
    assert math.inf in noise and len(noise) == 6 * 4
    assert [r.rows for r in again["baseline"]] == [r.rows for r in once["baseline"]]


def test_what_has_no_effect_in_an_exact_world_is_refused(here: Path, capsys: Any) -> None:
    for old, new, said in (
        ("steps=6", "sampling.temperature=0.5", "sampling has no effect"),
        ("task.options.noise=4", "task.options.nose=4", "nearest: noise"),
    ):
        (here / "claims" / "b.toml").write_text(EXACT.replace(old, new))
        assert main(["claims", "b", "--pilot"]) == 2
        assert said in capsys.readouterr().err
    assert main(["train", "task=gruppo.lab.tabular:exact"]) == 2
    assert "no model can be trained on it" in capsys.readouterr().err


# ---- placebos


def test_random_tokens_are_a_share_of_the_policys_and_the_same_again() -> None:
    kind = "gruppo.lab.claims.placebo:RandomTokens"
    [chosen] = parsed_method(f"grpo method.select+={kind} method.select.random_tokens.share=0.3").select
    logp = np.full(500, -0.5, np.float32)
    ids = np.arange(500) % 7
    episodes = [single_turn(i, "t", "g", np.array([1, 5]), ids, logp, 0, reward={"task": float(i)}) for i in range(4)]
    batch = pack(episodes)
    keep_N, weight_N = chosen.tokens(Context(), batch, Stats())
    assert abs(float(keep_N.double().mean()) - 0.3) < 0.04 and bool((weight_N == 1).all())
    assert torch.equal(chosen.tokens(Context(), batch, Stats())[0], keep_N)
    assert not torch.equal(chosen.tokens(Context(step=1), batch, Stats())[0], keep_N)
    every_N, weight_N = RandomTokens(0.3, counted=True).tokens(Context(), batch, Stats())
    assert bool(every_N.all()) and torch.equal(weight_N > 0, keep_N)


def parsed_method(text: str) -> Any:
    return apply(RunConfig(), list(compare.parsed(text).settings)).method
