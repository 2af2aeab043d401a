"""Pitfall 30: "advertised but unreachable method". Rule: "registry test that *runs* every name".

tests/registry/test_every_name_runs.py trains every registered name for two steps. Here: whatever is advertised, in the
list of the command line and in the documentation, is a registered name, and the other way round.
"""

from pathlib import Path

import pytest

from gruppo import methods
from gruppo.cli import main
from gruppo.methods import all_methods, method

DOCS = Path(__file__).parents[2] / "docs" / "methods"


def test_what_is_advertised_is_registered(capsys: pytest.CaptureFixture[str]) -> None:
    names = set(all_methods())
    assert main(["methods", "list"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert names <= listed
    assert {p.stem for p in DOCS.glob("*.md")} - {"index", "where"} == names
    assert {p.stem for p in Path(methods.__file__).parent.glob("*.py")} - {"__init__"} == names
    with pytest.raises(ValueError, match="is not known"):
        method("rloo_of_another_library")
    assert [n for n in names if method(n).name != n or not method(n).objectives] == []
