"""The picture of a claim for which no regime was found shows what its gates found."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

from gruppo.lab.claims import pictures
from gruppo.lab.claims.gates import NO_REGIME

GATE = {"arm": "baseline", "measure": "drop(x)", "kind": "at_least", "size": 0.1, "holds": False}
RESULT: dict[str, Any] = {
    "verdict": NO_REGIME,
    "settings": ["steps=2"],
    "curves": {},
    "gates": [GATE | {"seeds": [100, 101], "values": [0.01, 0.03]}],
}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The axes of pictures, which are closed when they are drawn."""
    found: list[Any] = []
    monkeypatch.setattr(plt, "close", lambda figure: found.extend(figure.axes))
    return found


def pilot(*settings: str, of: str = "steps=2") -> dict[str, Any]:
    runs = [
        {"arm": "baseline", "setting": s, "values": {"drop(x)": [0.01 * i, 0.02 * i]}} for i, s in enumerate(settings)
    ]
    return {"settings": [of], "runs": runs}


def test_the_values_of_a_gate_stand_beside_what_was_asked_for(tmp_path: Path, drawn: list[Any]) -> None:
    pictures.draw(RESULT, tmp_path / "b.png")
    [axis] = drawn
    points = [float(line.get_ydata()[0]) for line in axis.lines if line.get_marker() == "o"]
    level = {line.get_label(): line.get_ydata()[0] for line in axis.lines if not line.get_label().startswith("_")}
    assert points == [0.01, 0.03] and level == {"mean": pytest.approx(0.02), "at least 0.1": 0.1}
    assert [t.get_text() for t in axis.get_xticklabels()] == ["100", "101"]
    assert axis.get_title() == "baseline, drop(x): does not hold"
    assert 1000 < (tmp_path / "b.png").stat().st_size < 40_000


def test_a_stored_sweep_of_the_rule_is_shown(tmp_path: Path, drawn: list[Any]) -> None:
    other = pilot("optim.lr=1", "optim.lr=2", of="steps=3")
    for stored, ticks in (
        ([pilot("optim.lr=1e-4", "optim.lr=2e-4"), other], ["1e-4", "2e-4"]),
        ([other], ["100", "101"]),
        ([pilot("")], ["100", "101"]),
    ):
        pictures.draw(RESULT, tmp_path / "b.png", stored)
        assert [t.get_text() for t in drawn.pop().get_xticklabels()] == ticks


def test_what_was_not_run_has_no_picture() -> None:
    assert not pictures.has_picture(None)
    assert pictures.has_picture(RESULT) and pictures.has_picture({"verdict": "reproduced", "curves": {"entrant": {}}})
