"""Every method has its file of evidence, and every file all that there is about its method."""

import re
from pathlib import Path

import evidence
import pytest

from gruppo.methods import all_methods

HERE = Path(__file__).parent
NAMES = sorted(all_methods())


def test_a_file_for_every_method() -> None:
    files = {p.stem.removeprefix("test_") for p in HERE.glob("test_*.py")} - {"evidence"}
    assert files == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_has_all_lines(name: str) -> None:
    text = (HERE / f"test_{name}.py").read_text()
    assert text.startswith(f'"""Evidence for {name}: ')
    assert re.findall(r"^test_\w+ = evidence\..*$", text, re.MULTILINE) == list(evidence.expected(name))


def test_nobody_is_without_an_owner() -> None:
    """A mistake, an edge or a term that no method owns would not be tried."""
    for table in (evidence.mistakes(), evidence.edges(), [which.partition(" ")[0] for which in evidence.TERMS]):
        assert set(table) <= set(NAMES)
