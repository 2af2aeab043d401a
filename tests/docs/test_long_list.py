"""tests/long.txt: every line is a test that there is."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LINES = [line for line in (TESTS / "long.txt").read_text().splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("file", sorted({line.partition("::")[0] for line in LINES}))
def test_every_line_is_a_test(file: str) -> None:
    text = (TESTS / file).read_text()
    for line in LINES:
        if line.startswith(f"{file}::"):
            name = line.partition("::")[2].partition("[")[0]
            assert f"def {name}(" in text, f"tests/long.txt: {line} is no test any more. Remove that line."


def test_in_order_and_once() -> None:
    assert sorted(set(LINES)) == LINES
