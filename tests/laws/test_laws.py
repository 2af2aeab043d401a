"""Every registered method keeps every law, or says which it breaks and why."""

from collections.abc import Iterator

import pytest
from furniture import FEW, MANY, SEEDS
from hypothesis import given

from gruppo.lab.laws import LAWS, ONCE, check_laws, verdict
from gruppo.methods import all_methods
from gruppo.stages import kind
from gruppo.stages.prompting import Hint, HintInMessage
from gruppo.stages.replay import Recent

METHODS = all_methods()


def pairs() -> Iterator[tuple[str, str]]:
    return ((name, law) for name, m in METHODS.items() for law in LAWS if law not in ONCE and law not in m.breaks)


@pytest.mark.parametrize(("name", "law"), list(pairs()))
@FEW
@given(seed=SEEDS)
def test_law(name: str, law: str, seed: int) -> None:
    assert verdict(law, METHODS[name], seed) == ""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "law"), list(pairs()))
@MANY
@given(seed=SEEDS)
def test_law_many(name: str, law: str, seed: int) -> None:
    assert verdict(law, METHODS[name], seed) == ""


@pytest.mark.parametrize(
    ("name", "law"), [(name, law) for name, m in METHODS.items() for law in sorted(ONCE) if law not in m.breaks]
)
def test_law_of_the_record(name: str, law: str) -> None:
    assert verdict(law, METHODS[name]) == ""


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.breaks])
def test_what_is_declared_as_broken_is_broken_and_has_a_reason(name: str) -> None:
    for law, reason in METHODS[name].breaks.items():
        assert law in LAWS, f"{name} declares {law}, which is no law"
        assert len(reason.split()) >= 5, f"{name} breaks {law} without a reason that a reader could judge"
        said = [verdict(law, METHODS[name], seed) for seed in range(3)]
        assert any(said), f"{law} holds for {name}: take the declaration away"
        assert not any(s.startswith("raised") for s in said)


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
