"""Numbers of runs, and verdicts from them."""

import math
from typing import Any

import numpy as np
import pytest

from gruppo.lab.claims.claim import Claim, Condition
from gruppo.lab.claims.measures import MEASURES, measure
from gruppo.lab.claims.verdict import judge, verdict

ROWS = [
    {"step": 0, "held_out": 0.2},
    {"step": 1, "sampled": 100.0, "length": 9.0, "norm": 2.0},
    {"step": 2, "sampled": 150.0, "length": 7.0, "norm": 0.5, "held_out": 0.6},
    {"step": 3, "sampled": 50.0, "length": 8.0, "norm": 0.5},
    {"step": 4, "sampled": 60.0, "length": 4.0, "norm": 0.0, "held_out": 0.5},
]


# ---- measures


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("last(held_out)", 0.5),
        ("best(held_out)", 0.6),
        ("least(held_out)", 0.2),
        ("mean(length)", 7.0),
        ("mean(length, 2)", 6.0),
        ("drop(held_out)", 0.1),
        ("drop(sampled)", 100.0),
        ("off(length, 5, 2)", 0.2),
        ("steps_to(held_out, 0.55)", 2.0),
        ("steps_to(held_out, 0.9)", math.inf),
        ("spent_to(sampled, held_out, 0.55)", 250.0),
        ("spent_to(sampled, held_out, 0.1)", 0.0),
        ("spent_to(sampled, held_out, 0.9)", math.inf),
        ("spike(sampled)", 150 / 80),
        ("spike(length)", 9 / 7.5),
        ("spike(norm)", 4.0),
        ("apart(sampled, length)", math.log(90 / 7)),
        ("apart(length, sampled)", math.log(90 / 7)),
        ("apart(length, length)", 0.0),
    ],
)
def test_numbers_of_a_run(text: str, value: float) -> None:
    assert measure(text)(ROWS) == pytest.approx(value)


def test_every_measure_is_tried_above() -> None:
    tried = {"last", "best", "least", "mean", "drop", "off", "steps_to", "spent_to", "spike", "apart"}
    assert set(MEASURES) == tried


def test_what_a_step_logs_above_0_only_is_0_where_it_is_left_out() -> None:
    """The mean over the steps that have any would be the larger the rarer it is."""
    rows: list[dict[str, Any]] = [{"step": i, "turns": 3.0, "held_out": 0.5 if i == 4 else None} for i in range(1, 5)]
    rows[1] |= {"turns/void": 0.4, "tool_calls": 2.0, "open": 0.5}
    rows = [{"step": 0, "turns": None, "held_out": 0.5}, *rows]
    assert measure("mean(turns/void)")(rows) == pytest.approx(0.1) and measure("last(turns/void)")(rows) == 0
    assert measure("mean(tool_calls, 2)")(rows) == 0 and measure("best(turns/invalid)")(rows) == 0
    assert measure("steps_to(turns/void, 0.4)")(rows) == 2 and measure("last(held_out/failed)")(rows) == 0
    assert measure("spent_to(tool_calls, turns/void, 0.4)")(rows) == 2
    for text in ("mean(turns/void)", "mean(graded)", "mean(held_out/turns/void)"):  # answers without turns have none
        with pytest.raises(ValueError, match="has logged no"):
            measure(text)([{"step": 1, "held_out": 0.5}])
    assert measure("mean(open)")(rows) == 0.5  # not known of the others, which do not say how many were truncated


def test_a_measure_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match=r"nothing of that name can be read.*last\("):
        measure("lst(held_out)")
    with pytest.raises(ValueError, match="missing 1 required"):
        measure("steps_to(held_out)")
    with pytest.raises(ValueError, match=r"has logged no held_ot .nearest: held_out.* Measure one of held_out, "):
        measure("last(held_ot)")(ROWS)
    for text, said in (
        ("steps_to(0.8, held_out)", "0.8 is no name of a metric"),
        ("steps_to(held_out, .5)", "'.5' is no number"),
        ("last(3)", "3.0 is no name"),
        ("mean(length, 0.5)", "0.5 is no number of values"),
        ("off(length, 5, -2)", "-2.0 is no number of values"),
    ):
        with pytest.raises(ValueError, match=said):
            measure(text)  # before the runs, not after them


# ---- verdicts


def runs(entrant: Any, baseline: Any) -> Any:
    return {
        arm: [[{"step": 1, "x": float(v)}] for v in values]
        for arm, values in (("entrant", entrant), ("baseline", baseline))
    }


NOISE = np.array([0.01, -0.02, 0.0, 0.03, -0.01, 0.02, -0.03, 0.0, 0.01, -0.01])
BASE = np.linspace(0.4, 0.6, 10)


@pytest.mark.parametrize(
    ("kind", "size", "shift", "holds"),
    [
        ("higher", 0.05, 0.10, "yes"),
        ("higher", 0.05, 0.03, "open"),  # surely above 0, but smaller than claimed, and 0.05 is not excluded
        ("higher", 0.05, 0.00, "no"),
        ("higher", 0.05, -0.10, "no"),
        ("lower", 0.05, -0.10, "yes"),
        ("lower", 0.05, 0.10, "no"),
        ("not_worse", 0.03, 0.0, "yes"),
        ("not_worse", 0.03, 0.2, "yes"),
        ("not_worse", 0.03, -0.03, "open"),
        ("not_worse", 0.03, -0.10, "no"),
    ],
)
def test_what_the_seeds_say(kind: Any, size: float, shift: float, holds: str) -> None:
    scale = 2.0 if holds == "open" and kind == "higher" else 1.0
    judged = judge(Condition("last(x)", kind, size), runs(BASE + shift + scale * NOISE, BASE))
    assert judged.holds == holds, judged


def test_margins_may_be_of_what_should_be_small() -> None:
    for shift, holds in ((0.0, "yes"), (0.1, "no"), (-0.2, "yes")):
        c = Condition("last(x)", "not_worse", 0.03, better="lower")
        assert judge(c, runs(BASE + shift + NOISE, BASE)).holds == holds


def test_a_third_less() -> None:
    c = Condition("last(x)", "lower", 0.33, of="ratio")
    assert judge(c, runs(0.6 * BASE * np.exp(NOISE), BASE)).holds == "yes"
    assert judge(c, runs(0.9 * BASE * np.exp(NOISE), BASE)).holds == "no"
    assert judge(c, runs(0.6 * BASE * np.exp(NOISE), BASE)).mean == pytest.approx(-math.log(0.6), abs=0.01)


def test_the_entrant_alone() -> None:
    c = Condition("last(x)", "at_most", 0.1)
    for level, holds in ((0.05, "yes"), (0.1, "open"), (0.3, "no")):
        assert judge(c, runs(level + NOISE, BASE)).holds == holds


def test_runs_that_never_get_there_are_judged_by_signs() -> None:
    c = Condition("last(x)", "lower", 0.1)
    fast, never = [3.0] * 10, [math.inf] * 10
    assert judge(c, runs(fast, never)).holds == "yes"
    assert judge(c, runs(never, fast)).holds == "no"
    mixed = judge(c, runs([3.0] * 6 + [math.inf] * 4, [math.inf] * 6 + [3.0] * 4))
    assert mixed.holds == "open" and "6 of 10" in mixed.how
    assert judge(c, runs(never, never)).holds == "open"


@pytest.mark.parametrize("kind", ["lower", "not_worse", "at_most"])
def test_a_run_without_a_value_is_not_left_out(kind: Any) -> None:
    """Of ten runs four broke and six won: that is no six of six."""
    rows = runs([3.0] * 6 + [math.nan] * 4, [4.0 + 0.1 * i for i in range(10)])
    with pytest.raises(ValueError, match=r"no value for a run.*over all seeds or none"):
        judge(Condition("last(x)", kind, 0.1), rows)


def test_all_conditions_or_none() -> None:
    better, short = Condition("last(x)", "higher", 0.05), Condition("last(x)", "lower", 0.05)
    weak = Condition("last(x)", "higher", 0.14)
    data = runs(BASE + 0.13 + 3 * NOISE, BASE)

    def of(*conditions: Condition) -> str:
        return verdict(Claim("n", "m", "c", "a", "b", (), conditions), data)[0]

    assert of(better) == "reproduced"
    assert of(better, short) == "not reproduced"
    assert of(better, weak) == "inconclusive"
