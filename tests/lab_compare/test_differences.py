"""Differences between methods: pairs, margins and several questions at once, by simulation and by worked numbers."""

import math

import numpy as np
import pytest

from gruppo.lab.compare.statistics import holm, in_json, in_words, non_inferior, paired, pairwise
from gruppo.train.estimates import Interval, mean_interval

# Student's own data (1908): hours of sleep that two drugs added, ten patients. R: t.test(paired = TRUE).
DRUG_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
DRUG_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def test_students_sleep() -> None:
    d = paired(DRUG_2, DRUG_1)
    assert (d.mean, d.low, d.high, d.p) == pytest.approx((1.58, 0.7001142, 2.4598858, 0.00283289), rel=1e-5)
    assert paired(DRUG_1, DRUG_2).p == d.p and paired(DRUG_1, DRUG_2).high == -d.low


def test_the_interval_and_p_agree() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        d = paired(rng.normal(0.5, 1, 6), rng.normal(0, 1, 6))
        assert (d.p < 0.05) == (d.low > 0 or d.high < 0)


def test_pairing_removes_shared_luck() -> None:
    rng = np.random.default_rng(0)
    luck = rng.normal(0, 5, 8)
    a, b = luck + 0.3 + rng.normal(0, 0.1, 8), luck + rng.normal(0, 0.1, 8)
    together = paired(a, b)
    apart = mean_interval(a).high - mean_interval(a).low
    assert together.p < 0.01 and together.high - together.low < 0.1 * apart


def test_no_spread_in_the_differences() -> None:
    assert paired([1, 2, 3], [1, 2, 3]).p == 1
    for same in (paired([1, 2, 3], [0, 1, 2]), paired([0.5, 0.6], [0.475, 0.575])):  # the second but for rounding
        assert math.isnan(same.p) and math.isnan(same.low) and same.mean > 0
    assert not non_inferior([1, 2, 3], [0, 1, 2], margin=0.5)
    assert math.isnan(paired([1.0], [2.0]).p)
    assert paired([1, 2, math.nan], [0, 0, 5]).n == 2


def test_not_worse_by_a_margin() -> None:
    """One-sided at 95 %, so the bound is that of the two-sided interval at 90 %."""
    low = paired(DRUG_1, DRUG_2, level=0.90).low
    assert non_inferior(DRUG_1, DRUG_2, margin=-low + 1e-9) and not non_inferior(DRUG_1, DRUG_2, margin=-low - 1e-9)
    with pytest.raises(ValueError, match="above 0"):
        non_inferior(DRUG_1, DRUG_2, margin=0)


def test_not_worse_is_said_falsely_5_times_in_100() -> None:
    rng = np.random.default_rng(5)
    false = [non_inferior(rng.normal(-0.5, 1, 6), np.zeros(6), margin=0.5) for _ in range(1000)]
    assert np.mean(false) == pytest.approx(0.05, abs=0.02)


def test_holm_worked() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []
    assert holm([0.01, math.nan])[0] == 0.01 and math.isnan(holm([0.01, math.nan])[1])


def test_holm_keeps_the_chance_of_any_false_finding() -> None:
    rng = np.random.default_rng(0)
    four = [[paired(x, np.zeros(5)).p for x in draw] for draw in rng.normal(0, 1, (600, 4, 5))]
    assert np.mean([min(holm(p)) < 0.05 for p in four]) < 0.065 and np.mean([min(p) < 0.05 for p in four]) > 0.12


# ---- words: an interval of width 0 is none, wherever it is shown


SHOWN = {
    (0.5, 0.4, 0.6, 3): ("0.500 [0.400, 0.600]", ""),
    (0.0, 0.0, 0.0, 3): ("0.000 (every prompt: no spread)", "every prompt: no spread"),
    (0.1, math.nan, math.nan, 2): ("0.100 (every prompt: no spread)", "every prompt: no spread"),
    (0.0, math.nan, math.nan, 1): ("0.000 (one prompt: no interval)", "one prompt: no interval"),
    (math.nan, math.nan, math.nan, 0): ("nan (no prompt was judged)", "no prompt was judged"),
}


@pytest.mark.parametrize(("interval", "expected"), SHOWN.items())
def test_an_interval_in_words_and_in_json(interval: tuple[float, float, float, int], expected: tuple[str, str]) -> None:
    i, (words, why) = Interval(*interval), expected
    assert in_words(i, "prompt") == words
    assert in_words(i, "prompt", "+") == (words.replace("0.", "+0.") if "nan" not in words else "+nan" + words[3:])
    table = in_json({"rows": [{"x": vars(i), "name": "a"}]}, "prompt")["rows"][0]
    assert table["name"] == "a" and table["x"]["mean"] is i.mean
    if why:
        assert table["x"]["low"] is None and table["x"]["high"] is None and table["x"]["no_interval"] == why
    else:
        assert table["x"] == vars(i)


@pytest.mark.parametrize("values", [[[0.0, 1.0], [0.0, 1.0]], [[1.0, 1.0], [0.0, 0.0]], [[1.0], [1.0]], [[1.0], [0.5]]])
def test_gruppo_eval_shows_no_interval_of_width_0(values: list[list[float]]) -> None:
    from gruppo.cli.evaluate import differences

    (pair,) = pairs = pairwise(dict(zip("ab", values, strict=True)))
    said = differences(pairs)[1]
    assert f"a - b: {in_words(pair.difference, 'prompt', '+')}" in said
    assert "nan" not in said and "[" not in said
    assert said.endswith(", so not tested" if math.isnan(pair.p_holm) else ", p 1: not beyond noise")
