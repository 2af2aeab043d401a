"""What a sweep may be, and what may be chosen of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_gates import RATES, SWEPT

from gruppo.lab.claims.claim import read


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ('"optim.lr=0.123"', "which is no point of its sweep"),
        ('"optim.lr=1e-03"', "which is no point of its sweep"),
        ("0.1", "is no setting"),
        ('""', "is no setting"),
    ],
)
def test_what_was_chosen_is_a_point_of_the_sweep(tmp_path: Path, point: str, said: str) -> None:
    path = tmp_path / "b.toml"
    path.write_text(f'{SWEPT}[chosen]\nbaseline = {point}\nentrant = "{RATES[2]}"\n')
    with pytest.raises(ValueError, match=said):
        read(path)


@pytest.mark.parametrize(("points", "said"), [([0.1, *RATES], "is no setting"), ([*RATES, "samples=9"], "one thing")])
def test_a_sweep_is_of_one_thing(tmp_path: Path, points: list[Any], said: str) -> None:
    path = tmp_path / "b.toml"
    path.write_text(SWEPT.replace(json.dumps(RATES), json.dumps(points)))
    with pytest.raises(ValueError, match=said):
        read(path)


def test_a_point_of_two_settings_is_not_for_an_arm_that_has_one_of_them(tmp_path: Path) -> None:
    path, both = tmp_path / "b.toml", [f"optim.lr=1e-3 samples={n}" for n in (2, 4, 8, 16)]
    path.write_text(SWEPT.replace(json.dumps(RATES), json.dumps(both)))
    claim = read(path)
    assert claim.swept("grpo samples=3") == claim.swept("grpo optim.lr=1") == () and claim.swept("grpo") == (*both,)
