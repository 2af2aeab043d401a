"""The mistakes that `make mutants ARGS=pitfalls` plants: each still fits the code as it is."""

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MISTAKES = tomllib.loads(Path(__file__).with_name("planted.toml").read_text(encoding="utf-8"))["mistake"]


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: f"pitfall {row['pitfall']}")
def test_a_mistake_can_be_planted(row: dict[str, Any]) -> None:
    """Otherwise none is planted, since the list is refused as a whole, and nobody notices until somebody calls it."""
    code = (ROOT / "src" / "gruppo" / row["file"]).read_text(encoding="utf-8")
    assert code.count(row["before"]) == 1, "the text to replace is gone, or stands there twice: write it anew"
    ast.parse(code.replace(row["before"], row["after"]))
