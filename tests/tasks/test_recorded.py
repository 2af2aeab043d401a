"""Recorded answers: of a file, of the writers, of the preference task; and what is refused."""

import importlib
import math

import pytest

from gruppo.tasks import BUILT_IN, NAMES, Task, family, load_task, sorting
from gruppo.tasks.recorded import Answer, demonstration, recorded

CELLS = [(name, level) for name in BUILT_IN for level in family(name).levels]


def task(**meta: object) -> Task:
    return Task("u", "p", "42", 1, "own", meta=meta)


def scorer(name: str):
    return importlib.import_module(f"gruppo.tasks.{name}").score


@pytest.mark.parametrize(("name", "level"), CELLS)
def test_a_demonstration_is_right_and_the_other_answer_is_not(name: str, level: int) -> None:
    """`solution` is not: its steps are no answer for most scorers."""
    for t in load_task(name, level=level).train[:40]:
        right, slip = recorded(t)
        assert scorer(name)(t, right.text) == 1.0 and demonstration(t) == right.text
        assert scorer(name)(t, slip.text) == 0.0
        assert math.isnan(right.reward) and math.isnan(slip.reward), "the run's scorer judges them"
        assert len(right.text) + 1 <= family(name).max_tokens[level]
        assert recorded(t) == recorded(t)


def test_answers_of_a_file() -> None:
    rows = [{"text": "a", "reward": 2}, {"text": "", "label": False}, {"text": "c", "label": True}, {"text": "d"}]
    found = recorded(task(answers=rows))
    assert found[:3] == (Answer("a", 2.0), Answer("", 0.0), Answer("c", 1.0))
    assert found[3].text == "d" and math.isnan(found[3].reward)
    assert demonstration(task(answers=rows)) == "a"


def test_a_task_without_answers_gives_its_answer() -> None:
    assert recorded(task()) == (Answer("42", 1.0),)
    none = Task("u", "p", "", 1, "own")
    assert recorded(none) == ()
    with pytest.raises(ValueError, match=r"'u' has no recorded answer.*meta\['answers'\].*method\.rollout=group"):
        demonstration(none)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("just a text", r"answers'\]\[1\] is 'just a text', which has no text"),
        ({"reward": 1.0}, "has no text"),
        ({"text": 3}, "has no text"),
        ({"text": "b", "rewrd": 1.0}, "'rewrd'. Did you mean 'reward'"),
        ({"text": "b", "reward": "high"}, "reward 'high', so it cannot be compared"),
        ({"text": "b", "reward": float("inf")}, "reward inf"),
    ],
)
def test_what_is_no_answer_is_refused(row: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        recorded(task(answers=[{"text": "a", "reward": 1.0}, row]))


# the preference task


@pytest.mark.parametrize("level", family("preference").levels)
def test_chosen_is_better_and_both_are_answers(level: int) -> None:
    tasks = load_task("preference", level=level)
    wrong = 0
    for t in tasks.train[:200]:
        chosen, rejected = recorded(t)
        assert chosen.reward > rejected.reward
        for a in (chosen, rejected):
            assert a.reward == scorer("preference")(t, a.text) == sorting.score_places(t, a.text)
            assert len(a.text) + 1 <= tasks.max_tokens
        wrong += chosen.reward < 1
        assert scorer("preference")(t, t.answer) == 1.0
    assert 20 < wrong < 180, "often the chosen answer is only the better one"


def test_length_says_nothing() -> None:
    """Longer answers are chosen as often as rejected: otherwise length is all that is learned."""
    longer = shorter = 0
    for t in load_task("preference").train[:2000]:
        chosen, rejected = (len(a.text.split()) for a in recorded(t))
        longer, shorter = longer + (chosen > rejected), shorter + (chosen < rejected)
    assert longer > 100 and shorter > 100 and abs(longer - shorter) < 60


def test_the_same_problems_are_held_out_as_in_sorting() -> None:
    """The shipped weights have learned from `sorting`: what was held out there is held out here."""
    for level in family("preference").levels:
        for rank in range(0, 4000, 7):
            held = family("preference").held_out(level, rank)
            assert held == family("sorting").held_out(level, rank)
        assert all(
            family("sorting").held_out(level, family("preference").rank(level, "held_out", 3, i)) for i in range(50)
        )


def test_items_never_change() -> None:
    first = load_task("preference", seed=3).held_out[5]
    assert (first.uid, first.prompt) == ("preference/2/39,53,57,74", "sort 39 57 74 53:")
    assert [a.text for a in recorded(first)] == ["39 53 67 74", "53 39 57 74"]
    assert first == load_task("preference", seed=3).held_out[5]


def test_it_is_found_by_name() -> None:
    assert "preference" in NAMES and "preference" not in BUILT_IN
    with pytest.raises(ValueError, match="Did you mean 'preference'"):
        load_task("preferences")
