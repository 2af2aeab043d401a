"""What held-out figures are called, and which of them can be compared."""

import json
from typing import Any

import numpy as np
import pytest
import tomli_w

from gruppo.train.measured import changed_words, comparable, measured_otherwise, result_words, since, steps_words
from gruppo.train.metrics import graded
from gruppo.train.progress import Display, word

ROWS: list[dict[str, Any]] = [
    {"step": 0, "held_out": 0.3},
    {"step": 1, "held_out": 0.4, "held_out/graded": 0.5},
    {"step": 1, "held_out": 1.0, "held_out/anew": 1.0},
    {"step": 2, "held_out": 0.8},
]


@pytest.mark.parametrize("scores, share", [([0, 1, 1], 0), ([0.5, 1], 0.5), ([-1, 1], 0.5), ([np.nan, 1], 0), ([], 0)])
def test_graded_scores(scores: list[float], share: float) -> None:
    assert graded(scores) == share


def test_figures_are_compared_since_the_run_measured_anew() -> None:
    assert comparable(ROWS) == ROWS[2:] and since(ROWS) == 1
    assert comparable(ROWS[:2]) == ROWS[:2] and since(ROWS[:2]) == 0 and comparable([]) == []
    assert word(ROWS[:2]) == "score" and word(comparable(ROWS)) == "accuracy"


def test_words_of_a_summary() -> None:
    old: dict[str, Any] = {"accuracy_before": 0.25, "accuracy_after": None}
    assert result_words(old) == "held-out accuracy 0.250 → —"
    new = {**old, "measure": "score", "measured_since": 3}
    assert result_words(new) == "held-out score 0.250 → — since step 3 (measured anew)"


def record(depends: dict[str, str], **config: Any) -> bytes:
    return json.dumps({"config": tomli_w.dumps(config), "depends": depends}).encode()


@pytest.mark.parametrize("depends, config, other", [
    ({}, {}, False),
    ({"task.reward (mine.py)": "b"}, {}, True),
    ({"torch": "b"}, {}, False),
    ({}, {"task": {"reward": "exact"}}, True),
    ({}, {"task": {"args": {"scale": 2}}}, True),
    ({}, {"task": {"workers": 2}}, False),
    ({}, {"task": {"seconds": 2.0}}, False),
    ({}, {"eval": {"prompts": 9}}, True),
    ({}, {"eval": {"every": 9}}, False),
    ({}, {"optim": {"lr": 0.1}}, False),
])  # fmt: skip
def test_what_a_figure_depends_on(depends: dict[str, str], config: dict[str, Any], other: bool) -> None:
    now = record(depends, **config)
    assert bool(measured_otherwise(record({}), now)) == other
    assert measured_otherwise(now, now) == [] == measured_otherwise(None, now)


@pytest.mark.parametrize("changes, data, words", [
    ([], False, ""),
    (["task.reward: exact → numeric", "task.reward (r.py): a → absent"], False, "the reward has"),
    (["task.args.scale: 1 → 2"], False, "the reward has"),
    (["task.level: 1 → 2"], True, "the task has"),
    ([], True, "the data have"),
    (["task.reward: exact → math"], True, "the data and the reward have"),
    (["eval.prompts: 8 → 9"], False, "the way of measuring has"),
    (["task (t.py): a → b", "task.reward: → math"], False, "the task and the reward have"),
])  # fmt: skip
def test_what_has_changed_is_named(changes: list[str], data: bool, words: str) -> None:
    assert changed_words(changes, data) == words


def test_steps_are_those_of_the_difference() -> None:
    assert [steps_words({"steps": n}) for n in (1, 202)] == ["1 step", "202 steps"]
    assert steps_words({"steps": 202, "measured_since": 47}) == "155 of 202 steps"


def test_what_is_paid_in_training_does_not_name_the_measure() -> None:
    """Two methods of one comparison: one pays tries by half, the other does not, and both are measured alike."""
    assert word([{"step": 0, "held_out": 0.1}, {"step": 1, "graded": 0.5}]) == "accuracy"
    assert word([{"step": 0, "held_out": 0.0, "held_out/graded": 0.0}, {"step": 1}]) == "score"  # the task says so


def test_a_step_that_completes_no_group_shows_dashes_and_what_is_open(capsys: pytest.CaptureFixture[str]) -> None:
    shown, nan = Display("title", 2), float("nan")
    for step, row in ((1, {"reward": nan, "failed": nan, "open": 1.0}), (2, {"reward": 0.5, "failed": 0.0})):
        shown._next = 0.0
        shown.update(step, row)
    first, second = capsys.readouterr().out.splitlines()
    assert "reward —  open 1 " in first and "nan" not in first
    assert "reward 0.5 " in second and "open" not in second and "failed" not in second


def test_the_line_of_a_step_says_score_once_a_score_was_graded(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Display("title", 3)
    shown.begin([{"step": 0, "held_out": 1.0}])
    shown._next = 0.0
    shown.update(1, {"accuracy": 1.0})
    for step, row in ((2, {"accuracy": 0.7, "held_out/graded": 0.1}), (3, {"accuracy": 1.0})):
        shown._next = 0.0
        shown.update(step, row)
    first, second, third = capsys.readouterr().out.splitlines()
    assert "accuracy 1 " in first and "score 0.7 " in second and "score 1 " in third
    shown.begin([{"step": 3, "held_out": 1.0}])
    assert shown.word == "accuracy"  # the task has changed
