"""The numbers of a comparison, their words, and the files that it writes."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli.cli_runs import strict_json

from gruppo.lab.compare.compare import Comparison, Result
from gruppo.lab.compare.statistics import paired
from gruppo.train.estimates import mean_interval

VALUES = {"a": [0.5, 0.6, 0.8], "b": [0.4, 0.45, 0.7], "c": [0.2, 0.9, 0.5]}


def result(entrant: str, seed: int, value: float) -> Result:
    rows = [{"step": 0, "held_out": 0.1}, {"step": 1, "reward": 0.2}, {"step": 2, "reward": 0.3, "held_out": value}]
    return Result(entrant, seed, f"runs/{entrant}/{seed}", seconds=3.0, rows=rows)


def comparison(values: dict[str, Sequence[float]], **more: Any) -> Comparison:
    found = [result(name, seed, v) for name, of in values.items() for seed, v in enumerate(of) if not math.isnan(v)]
    return Comparison("a, b on test", "held_out", found, **more)


# ---- the numbers


def test_worked_table() -> None:
    table = comparison(VALUES).table()
    assert [e["name"] for e in table["entrants"]] == ["a", "b", "c"] and table["seeds"] == [0, 1, 2]
    first = table["entrants"][0]
    assert first["mean"] == pytest.approx(mean_interval(VALUES["a"]).mean) and first["first"] == pytest.approx(0.1)
    assert first["low"] == pytest.approx(mean_interval(VALUES["a"]).low) and first["n"] == 3
    ab, ac, bc = table["differences"]
    assert (ab["a"], ab["b"], ac["b"], bc["a"]) == ("a", "b", "c", "b")
    # differences .1, .15, .1: mean .35/3, s = .0289, t = 7.0 with 2 degrees: p = .0198; times 3 by Holm
    assert ab["difference"]["mean"] == pytest.approx(0.35 / 3)
    assert ab["difference"]["p"] == pytest.approx(paired(VALUES["a"], VALUES["b"]).p) == pytest.approx(0.0198, abs=1e-4)
    assert ab["p_holm"] == pytest.approx(3 * ab["difference"]["p"]) and not ab["beyond_noise"]
    assert comparison({k: VALUES[k] for k in "ab"}).table()["differences"][0]["beyond_noise"]  # one comparison: no cost


def test_words_say_what_was_done() -> None:
    text = comparison(VALUES, failed={"c, seed 3": "it broke"}, command="gruppo compare a b c").markdown()
    assert "| a | 0.100 | 0.633 [0.254, 1.013] |" in " ".join(text.split())
    assert "a - b" in text and "+0.117 [+0.045, +0.188]" in text and "0.059" in text
    assert "paired t-test over seeds, after Holm's correction for 3 comparisons" in text
    assert "- c, seed 3: it broke" in text and "`gruppo compare a b c`" in text


def test_words_say_whose_first_value_is_of_a_later_step() -> None:
    """An entrant of several stages is measured in its last one: its first value is not that of the start."""
    plain, staged = result("a", 0, 0.5), result("sft steps=3 then a", 0, 0.6)
    staged = replace(staged, rows=[{**row, "step": row["step"] + 3} for row in staged.rows])
    text = Comparison("", "held_out", [plain, staged]).markdown()
    assert "First values are of different steps: `sft steps=3 then a` is measured from step 3 on." in text
    assert "First values" not in comparison(VALUES).markdown() + Comparison("", "held_out", [staged]).markdown()


def test_seeds_are_paired_also_when_runs_are_missing() -> None:
    c = comparison({"a": [0.5, math.nan, 0.8], "b": [0.4, 0.45, 0.7]})
    [pair] = c.pairs()
    assert pair.difference.n == 2 and pair.difference.mean == pytest.approx(0.1)
    assert c.interval("a").n == 2 and c.interval("b").n == 3


def test_no_interval_of_width_0() -> None:
    """Scores lie on a grid: three seeds may well agree, and that is no proof of equality."""
    text = " ".join(comparison({"a": [0.5, 0.5, 0.5], "b": [0.5, 0.5, 0.5], "c": [0.4, 0.4, 0.4]}).markdown().split())
    assert "[0.500, 0.500]" not in text and "[+0" not in text
    assert "| a | 0.100 | 0.500 (every seed: no spread) |" in text
    assert "| c | 0.100 | 0.400 (every seed: no spread) |" in text  # but for rounding
    assert "| a - b | +0.000 (every seed: no spread) |" in text and "| a - c | +0.100 (every seed: no spread) |" in text


def test_one_seed_has_no_mean_and_no_interval() -> None:
    text = comparison({"a": [0.5], "b": [0.6]}).markdown()
    assert "seed 0 alone, so without an interval." in text and "Student" not in text and "mean over" not in text
    assert (
        "mean over seeds 0, 1, with Student's t-interval." in comparison({"a": [0.5, 0.6], "b": [0.6, 0.7]}).markdown()
    )


@pytest.mark.parametrize(("seeds", "why"), [(3, "every seed: no spread"), (1, "one seed: no interval")])
def test_in_json_an_interval_of_width_0_is_null_with_a_reason(seeds: int, why: str) -> None:
    table = comparison({"a": [0.5] * seeds, "b": [0.5] * seeds, "c": [0.4] * seeds}).table()
    found = [*table["entrants"], *(d["difference"] for d in table["differences"])]
    assert [(i["low"], i["high"], i["no_interval"]) for i in found] == [(None, None, why)] * 6
    assert all("no_interval" not in row for row in comparison(VALUES).table()["entrants"])


def test_one_seed_says_nothing_about_differences() -> None:
    c = comparison({"a": [0.5], "b": [0.4]})
    assert "With one seed nothing can be said" in c.markdown() and not c.table()["differences"][0]["beyond_noise"]


def test_band() -> None:
    steps, mean, low, high = comparison(VALUES).band("a", "held_out")
    assert steps == [0, 2] and mean == pytest.approx([0.1, 1.9 / 3])
    assert (low[0], high[0]) == pytest.approx((0.1, 0.1)) and high[1] == pytest.approx(mean_interval(VALUES["a"]).high)


def test_files(picture: None, tmp_path: Path) -> None:
    comparison(VALUES).write(tmp_path / "x")
    assert strict_json((tmp_path / "x/compare.json").read_text())["metric"] == "held_out"
    assert (tmp_path / "x/compare.md").read_text().endswith("(compare.png)\n")
    assert (tmp_path / "x/compare.png").read_bytes().startswith(b"\x89PNG")


def test_a_metric_that_nobody_logged() -> None:
    with pytest.raises(ValueError, match=r"--metric held_ot: no run has logged it \(nearest: held_out\)"):
        Comparison("x", "held_ot", [result("a", 0, 0.5)])
