"""The laws can fail: each planted mistake is caught by the law that is meant for it, at every seed.

The mistakes are those of every file `planted*.py` here: `SPOILED`, {what is wrong: (the law, the method)}, and
`RAISES`, the names of those that must raise.
"""

from importlib import import_module
from pathlib import Path

import pytest
from planted import SOUND

from gruppo.lab.laws import LAWS, ONCE, verdict
from gruppo.stages import Method

FILES = [import_module(path.stem) for path in sorted(Path(__file__).parent.glob("planted*.py"))]
SPOILED: dict[str, tuple[str, Method]] = {name: what for file in FILES for name, what in file.SPOILED.items()}
RAISES: set[str] = {name for file in FILES for name in getattr(file, "RAISES", ())}


OF_ANY_METHOD = [name for file in FILES if file.__name__ in ("planted", "planted_prefixes") for name in file.SPOILED]


@pytest.mark.parametrize("mistake", OF_ANY_METHOD)  # those of one method are in its file of tests/methods
def test_the_law_meant_for_it_catches_it(mistake: str) -> None:
    law, method = SPOILED[mistake]
    for seed in (0,) if law in ONCE else range(3):
        said = verdict(law, method, seed)
        assert said, f"{law} did not see it at seed {seed}"
        assert said.startswith("raised ") == (mistake in RAISES), said


def test_no_mistake_hides_another() -> None:
    assert len(SPOILED) == sum(len(file.SPOILED) for file in FILES)
    assert set(SPOILED) >= RAISES


def test_every_law_is_shown_a_mistake() -> None:
    assert {law for law, _ in SPOILED.values()} == set(LAWS)


@pytest.mark.parametrize("law", [law for law in LAWS if law != "fields_matter"])
@pytest.mark.parametrize("name", SOUND)
def test_what_the_mistakes_are_made_from_is_sound(name: str, law: str) -> None:
    """So that it is the mistake that is caught, and not what it was planted in."""
    assert verdict(law, SOUND[name], 0) == ""
