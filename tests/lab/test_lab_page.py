"""docs/lab.md: its table is complete and fresh, its commands are understood, its Python runs."""

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from gruppo.cli import arguments
from gruppo.methods import built_in

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "lab.md").read_text()
TABLE = PAGE.split("<!-- lab:begin -->")[1].split("<!-- lab:end -->")[0].strip().splitlines()


@pytest.fixture(scope="module")
def make_lab() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_lab", ROOT / "scripts" / "make_lab.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_method_has_a_line() -> None:
    """Or stands among those that were not measured yet."""
    names = [m[1] for m in (re.match(r"\| \[(\w+)\]", row) for row in TABLE) if m]
    waiting = re.findall(r"Not measured yet: ([^.]*)\.", PAGE.replace("\n", " "))
    waiting = waiting[0].split(", ") if waiting else []
    assert not set(names) & set(waiting)
    assert sorted([*names, *waiting]) == sorted(built_in()), "run scripts/make_lab.py --new"


@pytest.mark.parametrize("name", ["grpo", pytest.param("ppo", marks=pytest.mark.slow)])
def test_lines_are_fresh(name: str, make_lab: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_lab.table(make_lab.measured([name])).splitlines()[-1] in TABLE, "run scripts/make_lab.py --table"


def test_pictures_are_there() -> None:
    wanted = re.findall(r"\]\((lab/\w+\.png)\)", PAGE)
    assert len(wanted) == 4
    for name in wanted:
        assert 5_000 < (ROOT / "docs" / name).stat().st_size < 150_000


def test_commands_are_understood() -> None:
    lines = re.findall(r"^gruppo lab .*$", PAGE, re.M)
    assert len(lines) > 3
    for line in lines:
        args = arguments(shlex.split(line, comments=True)[1:])
        assert all(m.split()[0] in built_in() or m.startswith("./") for m in args.methods)


def test_python_runs() -> None:
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S):
        exec(compile(block, "docs/lab.md", "exec"), {})
