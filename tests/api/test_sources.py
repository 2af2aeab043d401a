"""What is defined in no file becomes a file that does the same; what cannot is refused, with the remedy."""

import ast
import linecache
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gruppo.sources import nowhere, source_of
from gruppo.tasks.imports import load_object
from gruppo.written import import_path, reward_path


def defined(code: str, alone: bool = False, **names: Any) -> dict[str, Any]:
    """The names of a script, or of a notebook's cell, whose statements are compiled alone; in a space of their own."""
    cell = f"<cell {len(linecache.cache)}>"
    linecache.cache[cell] = (len(code), None, code.splitlines(keepends=True), cell)
    space = {"__name__": "__main__", **names}
    parts = [ast.Module([node], []) for node in ast.parse(code).body] if alone else [ast.parse(code)]
    for part in parts:
        exec(compile(part, cell, "exec"), space)
    return space


def back(found: Any) -> Any:
    """The same from a file, as another process has it."""
    path, args = reward_path(found, Path("runs"))
    loaded = load_object(path)
    return partial(loaded, **args) if args else loaded


CELL = """
import math
import re
import statistics as stats
from functools import cache
from collections import Counter as Counted

SCALE, WORDS, WIDE = 2.5, {"ten": 10, "all": (1, [2, None])}, re.compile(r"\\d+", re.I)

def helper(text):
    return Counted(WIDE.findall(text))

@cache
def slow(n):
    return slow(n - 1) + 1 if n else 0

def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n != 0 and even(n - 1)

def reward(task, text, scale=SCALE):
    SCALE = 1  # a name of its own
    found = [x for x in helper(text) if even(len(x))]
    return scale * len(found) + math.sqrt(stats.mean([slow(3), WORDS["ten"]])) + WORDS["all"][0] + SCALE
"""


@pytest.mark.parametrize("alone", [False, True])
def test_a_function_comes_with_what_it_uses(alone: bool) -> None:
    mine = defined(CELL, alone)["reward"]
    assert nowhere(mine)
    again = back(mine)
    assert not nowhere(again) and again is not mine
    for text in ("", "12 and 3456", "7"):
        assert again(None, text) == mine(None, text)
    assert back(partial(mine, scale=0.5))(None, "12") == mine(None, "12", scale=0.5)
    assert back(back(mine)) is back(mine)  # a file stays where it is


def test_a_class_comes_with_its_base_and_its_methods() -> None:
    code = '''
from dataclasses import dataclass

class Base:
    def start(self):
        return 1

@dataclass(frozen=True)
class Judge(Base):
    """It adds."""
    offset: float = 0.5

    @property
    def twice(self):
        return 2 * self.offset

    def start(self):
        return super().start() + self.twice

    def __call__(self, task, text):
        return self.start() + len(text)
'''
    mine = defined(code)["Judge"]
    assert back(mine)(2.0)(None, "abc") == mine(2.0)(None, "abc") == 8.0


def test_another_function_is_another_file() -> None:
    one, two = (defined(f"def reward(task, text):\n    return {n}")["reward"] for n in (1, 2))
    paths = [reward_path(f, Path("runs"))[0] for f in (one, two, one)]
    assert paths[0] == paths[2] != paths[1]
    assert [back(f)(None, "") for f in (one, two)] == [1, 2]
    Path(paths[0].rpartition(":")[0]).write_text("edited")
    assert reward_path(one, Path("runs"))[0] == paths[0] and "return 1" in Path(paths[0][: -len(":reward")]).read_text()


def test_what_a_module_has_is_imported_from_there() -> None:
    assert reward_path(math.hypot, Path("runs")) == ("math:hypot", {})
    assert import_path(back) == f"{__file__}:back"
    assert reward_path("numeric", Path("runs")) == ("numeric", {})
    assert not Path("runs").exists()


def counted(n: int) -> Callable[..., float]:
    def reward(task: Any, text: str) -> float:
        return float(n)

    return reward


@dataclass
class Callable_:
    n: int = 1

    def __call__(self, task: Any, text: str) -> float:
        return float(self.n)


@pytest.mark.parametrize("made, said", [
    (lambda: counted(3), "reward uses n of the function around it"),
    (lambda: defined("f = lambda task, text: 1.0")["f"], "Write a def"),
    (lambda: defined("def f(task, text):\n    return model(text)", model=object())["f"], "f uses model, a object"),
    (lambda: defined("def f(task, text):\n    return later(text)")["f"], "f uses later, which is not defined"),
    (lambda: Callable_(), "is an object, and the processes that judge cannot have it"),
    (lambda: 3, "is an object, and the processes that judge cannot have it"),
    (lambda: partial(counted, 3), "Name them"),
])  # fmt: skip
def test_what_cannot_be_written_is_refused(made: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        reward_path(made(), Path("runs"))


def test_source_that_has_changed_since_is_refused() -> None:
    mine = defined("def reward(task, text):\n    return 1.0")["reward"]
    cell = mine.__code__.co_filename
    linecache.cache[cell] = (1, None, ["def reward(task, text):\n", "    return 2.0\n"], cell)
    with pytest.raises(ValueError, match="has changed since it was run"):
        source_of([mine])
    del linecache.cache[cell]
    with pytest.raises(ValueError, match="cannot be found"):
        source_of([mine])


def test_two_meanings_of_a_name_are_refused() -> None:
    one = defined("K = 1\ndef one(task, text):\n    return K")["one"]
    two = defined("K = 2\ndef two(task, text):\n    return one(task, text) + K", one=one)["two"]
    with pytest.raises(ValueError, match="mean two things by K"):
        source_of([two])
