"""The rewards that claims are made with: right numbers, and the same answer always has the same reward."""

import asyncio

import pytest

from gruppo.tasks import Task, load_task
from gruppo.tasks.claims import early, heavy, near, noisy, outliers, partly, scaled
from gruppo.tasks.judge import Judge

TASKS = load_task("mix:addition@2+sorting@1", train_size=2000).train[:]


def test_scaled_keeps_two_rewards_apart() -> None:
    task = TASKS[0]
    assert scaled(task, task.answer) == {"task": 1.0, "length": -10.0 * len(task.answer)}
    assert scaled(task, "no", weight=0.5) == {"task": 0.0, "length": -1.0}


def test_noise_flips_that_share_of_the_answers_and_always_the_same_ones() -> None:
    for right in (True, False):
        texts = [t.answer if right else "?" for t in TASKS]
        seen = [noisy(t, text, flip=0.2) for t, text in zip(TASKS, texts, strict=True)]
        assert seen == [noisy(t, text, flip=0.2) for t, text in zip(TASKS, texts, strict=True)]
        assert sum(s != right for s in seen) / len(seen) == pytest.approx(0.2, abs=0.03)
    assert all(noisy(t, t.answer, flip=0.0) == 1.0 for t in TASKS[:50])
    assert len({noisy(TASKS[0], f"{i}", flip=0.5) for i in range(20)}) == 2  # by the text, too


def test_a_heavy_tail_is_in_a_component_of_its_own() -> None:
    seen = [heavy(t, t.answer) for t in TASKS]
    assert {s["task"] for s in seen} == {1.0} and {s["extra"] for s in seen} == {0.0, 49.0}
    assert sum(s["extra"] > 0 for s in seen) / len(seen) == pytest.approx(0.05, abs=0.02)
    assert all(heavy(t, "?") == {"task": 0.0, "extra": 0.0} for t in TASKS[:100])


def test_outliers_go_up_and_down_whether_an_answer_is_right_or_not() -> None:
    for right in (True, False):
        texts = [t.answer if right else "?" for t in TASKS]
        seen = [outliers(t, text, share=0.3, size=20.0) for t, text in zip(TASKS, texts, strict=True)]
        assert seen == [outliers(t, text, share=0.3, size=20.0) for t, text in zip(TASKS, texts, strict=True)]
        assert {s["task"] for s in seen} == {float(right)}
        for extra, part in ((20.0, 0.15), (-20.0, 0.15), (0.0, 0.7)):
            assert sum(s["extra"] == extra for s in seen) / len(seen) == pytest.approx(part, abs=0.03)


def test_near_has_as_many_right_answers_as_numbers_that_near() -> None:
    task = next(t for t in TASKS if t.source == "addition")
    right = [n for n in range(250) if near(task, f" {n}", within=3)]
    assert right == list(range(int(task.answer) - 3, int(task.answer) + 4))
    assert not any(near(task, text) for text in ("", "-1", "x", task.answer + "+1", "9" * 5000))


def test_a_chain_may_be_left_early() -> None:
    task = load_task("chain", level="2").train[0]
    totals = task.meta["totals"]
    assert [early(task, f"1 {t}") for t in totals] == [1.0] * 4
    assert [early(task, f"1 {t}", least=4) for t in totals] == [0.0, 0.0, 1.0, 1.0]
    assert not any(early(task, text) for text in ("", str(task.meta["numbers"][0]), f"{totals[1]} x"))
    with pytest.raises(ValueError, match="no totals of 6 numbers"):
        early(task, "1", least=6)


def test_a_chain_that_stops_early_is_partly_paid() -> None:
    task = load_task("chain", level="2").train[0]
    totals = task.meta["totals"]
    assert partly(task, f"1 {totals[-1]}") == {"task": 1.0, "early": 0.0}
    early_ones = [t for t in totals[:-1] if t != totals[-1]]
    assert early_ones and all(partly(task, f"1 {t}", 0.5) == {"task": 0.0, "early": 0.5} for t in early_ones)
    assert partly(task, "x") == {"task": 0.0, "early": 0.0}
    with pytest.raises(ValueError, match="Use task=chain"):
        partly(TASKS[0], "1")


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match=r"is no number"):
        near(next(t for t in TASKS if t.source == "sorting"), "1")
    with pytest.raises(ValueError, match=r"flip=2: no share"):
        noisy(TASKS[0], "1", flip=2)
    with pytest.raises(ValueError, match=r"share=-1: no share"):
        heavy(TASKS[0], "1", share=-1)
    with pytest.raises(ValueError, match=r"share=1.5: no share"):
        outliers(TASKS[0], "1", share=1.5)
    with pytest.raises(ValueError, match=r"'mine.jsonl' is none"):
        noisy(Task("1", "1+1=", "2", 1, "mine.jsonl"), "2")


def test_the_judge_takes_them_with_arguments() -> None:
    made = load_task("addition", scorer="gruppo.tasks.claims:scaled", args={"weight": 2})
    with Judge(made.scorer) as judge:
        [verdict] = asyncio.run(judge.score([(made.train[0], "abc")]))
        answers = asyncio.run(judge.answers([[(made.train[0], " 12 ")]]))
    assert verdict.components == {"task": 0.0, "length": -6.0} and answers == [["12"]]
