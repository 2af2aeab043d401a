"""Import paths: what loads, and the error for each mistake."""

import os
import py_compile
import sys
from pathlib import Path

import pytest

from gruppo.tasks.imports import load_object


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import neighbour\n\nclass Mine:\n    kind = neighbour.KIND\n\n\ndef reward(task, text):\n    return 1\n"
    )
    (tmp_path / "neighbour.py").write_text("KIND = 'own'\n")
    (tmp_path / "bad.py").write_text("x = 1\ny = x / 0\n")
    (tmp_path / "typo.py").write_text("def f(:\n")
    (tmp_path / "needs.py").write_text("import no_such_package_here\n")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [n for n in sys.modules if n.startswith("gruppo_user_") or n == "neighbour"]:
        del sys.modules[name]
    sys.path[:] = [p for p in sys.path if p != str(tmp_path)]


def test_file_module_and_nested_names(mine) -> None:
    assert load_object("./mine.py:Mine").kind == "own"
    assert load_object("mine.py:Mine.kind") == "own"
    assert load_object(f"{mine}/mine.py:Mine") is load_object("./mine.py:Mine")
    assert load_object("math:pi") > 3
    assert load_object("gruppo.tasks.addition:score").__name__ == "score"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("./min.py:Mine", r"there is no file .*min.py\. Did you mean 'mine.py'\?"),
        ("./none/x.py:Mine", "there is no file"),
        ("./mine.py:Mein", r"there is no 'Mein' in .*Did you mean 'Mine'\? It has: Mine, reward\."),
        ("./mine.py:Mine.kin", "Did you mean 'kind'"),
        ("./bad.py:f", r'failed at .*bad.py:2 "y = x / 0".*ZeroDivisionError: division by zero'),
        ("./typo.py:f", "SyntaxError"),
        ("./needs.py:f", "failed.*No module named 'no_such_package_here'"),
        ("no_such_package_here.mod:f", "there is no module 'no_such_package_here'.*Install it"),
        ("gruppo.tasks.none:f", "there is no module 'gruppo.tasks.none'"),
        ("gruppo.tasks.addition:scor", "Did you mean 'score'"),
        ("./mine.py", "is no import path.*Write ./file.py:name"),
        (":f", "is no import path"),
        ("a.b:", "is no import path"),
        ("a.b:x y", "is no import path"),
    ],
)
def test_mistakes_have_clear_errors(mine, path: str, said: str) -> None:
    with pytest.raises(ValueError, match="(?s)" + said):
        load_object(path)


def test_what_a_file_imports_is_not_offered(mine) -> None:
    Path("own.py").write_text(
        "import math, random\nfrom dataclasses import dataclass\nfrom math import sqrt\nfrom functools import partial\n"
        "LIMIT = 3\nclass Near:\n    pass\ndef score(task, text): pass\nhalf = partial(score, None)\nnear = Near()\n"
    )
    with pytest.raises(ValueError, match=r"It has: LIMIT, Near, half, near, score\."):
        load_object("./own.py:nothing")


def test_a_file_is_read_again_although_its_size_and_second_are_the_same(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "reward.py"
    for number in ("1.0", "0.5"):
        file.write_text(f"VALUE = {number}\n")
        os.utime(file, (1e9, 1e9))
        assert load_object(f"{file}:VALUE") == float(number)
        for name in [n for n in sys.modules if n.startswith("gruppo_user_reward_")]:
            monkeypatch.delitem(sys.modules, name)


def test_so_is_what_it_imports_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules and packages; but what is installed below that folder comes from its compiled copy, as ever."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "lib")])
    beside = [
        tmp_path / name for name in ("helper_b.py", "pack_b/__init__.py", "pack_b/inner.py", "lib/installed_b.py")
    ]
    modules, values = ("helper_b", "pack_b", "installed_b"), []
    for number in ("1.0", "0.5"):
        for file in beside:
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"VALUE = {number}\n")
            os.utime(file, (1e9, 1e9))
            if number == "1.0":
                py_compile.compile(str(file))
        (tmp_path / "reward.py").write_text(
            "import helper_b, pack_b, pack_b.inner, installed_b\n"
            "VALUES = [m.VALUE for m in (helper_b, pack_b, pack_b.inner, installed_b)]\n"
        )
        values.append(load_object(f"{tmp_path}/reward.py:VALUES"))
        for name in [n for n in sys.modules if n.startswith("gruppo_user_reward_") or n.partition(".")[0] in modules]:
            monkeypatch.delitem(sys.modules, name)
    assert values == [[1.0] * 4, [0.5, 0.5, 0.5, 1.0]]


def test_an_error_in_gruppo_names_the_line_of_the_file_that_called_it(tmp_path: Path) -> None:
    """Not gruppo's own line: nobody could change that."""
    file = tmp_path / "bad7.py"
    file.write_text("from gruppo.methods import method\n\nMINE = method('grpo').but(credits=1)\n")
    with pytest.raises(ValueError, match=r"but\(credits=…\)") as error:
        load_object(f"{file}:MINE")
    assert f'at {file}:3 "MINE = method(' in str(error.value) and "stages/method.py" not in str(error.value)
    (tmp_path / "helper7.py").write_text("import json\n\nSAID = json.loads('{')\n")
    (tmp_path / "uses7.py").write_text("import helper7\n")
    with pytest.raises(ValueError, match="importing it failed") as error:
        load_object(f"{tmp_path}/uses7.py:MINE")
    assert f"at {tmp_path}/helper7.py:3" in str(error.value), "neither the standard library's nor the importing file's"


def test_a_file_that_failed_can_be_repaired(mine) -> None:
    with pytest.raises(ValueError, match="division by zero"):
        load_object("./bad.py:x")
    (mine / "bad.py").write_text("x = 12345\n")
    assert load_object("./bad.py:x") == 12345
