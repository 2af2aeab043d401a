"""What the laws do, whatever the method. Each method's own laws are in tests/methods."""

import pytest
from planted import SPOILED

from gruppo.lab.laws import LAWS, check_laws, laws, verdict
from gruppo.methods import all_methods
from gruppo.stages import kind
from gruppo.stages.prompting import Hint, HintInMessage
from gruppo.stages.replay import Recent

METHODS = all_methods()


def test_rooms_before_and_after_the_batch_have_no_idle_field() -> None:
    """Shared occupants that no registered method furnishes yet."""
    grpo = METHODS["grpo"]
    for m in (grpo.but(prompting=(Hint(), HintInMessage())), grpo.but(replay=Recent(capacity=6, take=3, max_age=4))):
        assert verdict("fields_matter", m) == "", [kind(o) for _, o in m.occupants()]


def test_check_laws_turns_a_declaration_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A law that is declared as broken must be broken; one that raises is never excused."""
    few = {law: LAWS[law] for law in ("record", "order")}
    monkeypatch.setattr(laws, "LAWS", few)
    assert check_laws(METHODS["grpo"]) == {"record": "", "order": ""}
    lawful = METHODS["grpo"].but(breaks={"record": "for no good reason at all"})
    assert check_laws(lawful)["record"].startswith("declared as broken (for no good reason at all), but it holds")
    monkeypatch.setitem(few, "order", lambda method, seed: "it is broken" if seed == 2 else "")
    assert check_laws(METHODS["grpo"])["order"] == "it is broken"
    assert check_laws(METHODS["grpo"].but(breaks={"order": "on purpose"}))["order"] == ""
    monkeypatch.setitem(few, "order", lambda method, seed: 1 / 0)
    assert check_laws(METHODS["grpo"].but(breaks={"order": "on purpose"}))["order"].startswith(
        "raised ZeroDivisionError"
    )


def test_what_is_not_finite_is_told_once_with_its_cause() -> None:
    """The bug that is made first: every other law would fail by it, and none would name it."""
    said = check_laws(SPOILED["no reward in the mean"][1])
    law, words = next(iter(said.items()))
    assert law == "finite" and words.startswith("adv_N of failures_are_nan is not finite in ")
    assert "Without the episodes that have no reward (NaN)" in words and "where=batch.judged_E" in words
    assert {words for law, words in said.items() if law != "finite"} == {
        "not tested: adv_N of failures_are_nan is not finite"
    }
    assert set(said) == set(LAWS)
    assert "divided by 0, such as the deviation of equal rewards" in verdict(
        "finite", SPOILED["over a deviation of 0"][1]
    )
