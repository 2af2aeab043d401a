"""What the laws do, whatever the method. Each method's own laws are in tests/methods."""

import pytest

from gruppo.lab.laws import LAWS, check_laws, verdict
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
    for law in [law for law in LAWS if law not in ("record", "order")]:
        monkeypatch.delitem(LAWS, law)
    assert check_laws(METHODS["grpo"]) == {"record": "", "order": ""}
    lawful = METHODS["grpo"].but(breaks={"record": "for no good reason at all"})
    assert check_laws(lawful)["record"].startswith("declared as broken (for no good reason at all), but it holds")
    monkeypatch.setitem(LAWS, "order", lambda method, seed: "it is broken" if seed == 2 else "")
    assert check_laws(METHODS["grpo"])["order"] == "it is broken"
    assert check_laws(METHODS["grpo"].but(breaks={"order": "on purpose"}))["order"] == ""
    monkeypatch.setitem(LAWS, "order", lambda method, seed: 1 / 0)
    assert check_laws(METHODS["grpo"].but(breaks={"order": "on purpose"}))["order"].startswith(
        "raised ZeroDivisionError"
    )
