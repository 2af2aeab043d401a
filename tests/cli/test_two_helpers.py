"""Two files of one name beside two files of a user: a sentence, or both are stored; never the wrong one."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import SMALL, refused, trained

from gruppo.tasks.imports import load_object

HELPER = "own_helper_of_two"  # a name that no other test imports
MINE = f"""
from dataclasses import dataclass
from {HELPER} import COEF
from gruppo.methods.grpo import GRPO
from gruppo.stages.credit import GroupNormalised
from gruppo.stages.penalties import ReferenceKL

@dataclass(frozen=True)
class First(ReferenceKL):
    kl_coef: float = COEF

@dataclass(frozen=True)
class Second(GroupNormalised):
    eps: float = COEF

METHOD = GRPO.but(name="mine", penalties=(First(),))
"""
BOTH = (*SMALL, "method=./a/first.py:METHOD", "method.credit=./b/second.py:Second")


@pytest.fixture(autouse=True)
def folders(here: Path) -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    for folder, file, coef in (("a", "first", 0.1), ("b", "second", 0.7)):
        Path(folder).mkdir()
        Path(folder, f"{file}.py").write_text(MINE)
        Path(folder, f"{HELPER}.py").write_text(f"COEF = {coef}\n")
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name == HELPER or name.startswith(("gruppo_user_", f"{HELPER}.")):
            del sys.modules[name]


def test_the_second_helper_is_not_taken_for_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "train", *BOTH)
    assert f"./b/second.py:Second: it imports {HELPER}, which is" in said
    assert f"b/{HELPER}.py beside it" in said and f"a/{HELPER}.py, and would use that one. Rename one" in said


def test_each_alone_has_its_own() -> None:
    assert load_object("./b/second.py:Second")().eps == 0.7
    with pytest.raises(ValueError, match=f"it imports {HELPER}, which is .*a/{HELPER}.py beside it"):
        load_object("./a/first.py:First")


def test_a_name_that_the_other_file_does_not_have_is_no_riddle() -> None:
    """Without the check Python would say that it cannot import MORE from the wrong file."""
    Path("b/second.py").write_text(f"from {HELPER} import MORE\n")
    Path(f"b/{HELPER}.py").write_text("MORE = 1\n")
    load_object("./a/first.py:First")
    with pytest.raises(ValueError, match=f"it imports {HELPER}, .* Rename one"):
        load_object("./b/second.py:MORE")


def test_an_import_inside_of_a_function_is_seen_before_it_is_called() -> None:
    Path("b/second.py").write_text(f"def late():\n    from {HELPER} import COEF\n    return COEF\n")
    load_object("./a/first.py:First")
    with pytest.raises(ValueError, match=f"it imports {HELPER}, .* Rename one"):
        load_object("./b/second.py:late")


def test_files_of_one_content_are_one(capsys: pytest.CaptureFixture[str]) -> None:
    """They are as good as each other in Python; in a run folder they would be one file, which is said."""
    Path(f"b/{HELPER}.py").write_text(Path(f"a/{HELPER}.py").read_text())
    assert load_object("./a/first.py:First")().kl_coef == load_object("./b/second.py:Second")().eps == 0.1
    said = refused(capsys, "train", *BOTH)
    assert "which would be one file of the run. Rename one of them." in said


def test_files_of_two_names_are_both_stored() -> None:
    Path(f"b/{HELPER}.py").rename(f"b/{HELPER}_b.py")
    second = Path("b/second.py")
    second.write_text(second.read_text().replace(f"from {HELPER} ", f"from {HELPER}_b "))
    run = trained("x", *BOTH[len(SMALL) :])
    code = json.loads((run / "environment.json").read_text())["code"]
    assert set(code) == {"first.py", "second.py", f"{HELPER}.py", f"{HELPER}_b.py"}
    assert (run / f"code/{HELPER}_b.py").read_text() == "COEF = 0.7\n"
    assert (run / f"code/{HELPER}.py").read_text() == "COEF = 0.1\n"
