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

from gruppo.api.sources import nowhere, source_of
from gruppo.api.written import import_path, reward_path
from gruppo.tasks.imports import load_object


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
    (lambda: defined("def f(task, text):\n    return model(text)", model=object())["f"], "of f, or put f in a file"),
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


# a function is more than its definition

WRAPS = """
from functools import wraps

TIMES, B = 2, 1

def times(n):
    def around(f):
        @wraps(f)
        def inner(task, text):
            return n * f(task, text)
        return inner
    return around

def double(f):
    return times(2)(f)

def plain(task, text):
    return float(len(text))

@times(TIMES)
def decorated(task, text):
    return float(len(text))

def fallback(task, text, b=B, *, c=B):
    return b + c

class R:
    scale = 1.0
    kept = B

    def __call__(self, task, text):
        return self.scale * self.kept

    def half(self, task, text):
        return 0.5

def spare(self, task, text):
    return 0.25
"""


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("name, after", [
    ("decorated", ""),
    ("plain", "plain.stateless = True; plain.names = ['a', {'b': 1}]"),
    ("decorated", "decorated.stateless = True"),
    ("R", "R.scale = 5.0; R.stateless = True"),
    ("R", "B = 7"),  # the class has the value of before
    ("R", "R().scale = 5.0"),
])  # fmt: skip
def test_what_was_set_after_a_definition_comes_with_it(name: str, after: str, alone: bool) -> None:
    mine = defined(WRAPS + after, alone)[name]
    again = back(mine)
    plain = {k: v for k, v in vars(mine).items() if isinstance(v, int | float | list) and not k.startswith("__")}
    assert plain == {k: vars(again)[k] for k in plain} and ("stateless" in after) == hasattr(again, "stateless")
    one, two = (f() if name == "R" else f for f in (mine, again))
    assert one(None, "abc") == two(None, "abc")


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("after, said", [
    ("reward = double(plain)", "plain was wrapped by another function after its definition"),
    ("reward = double(decorated)", "decorated was wrapped by another function"),
    ("reward = decorated.__wrapped__", "decorated is the function inside of what its definition makes"),
    ("TIMES = 3; reward = decorated", "decorated has n=2, and its definition gives n=3 by now"),
    ("reward = fallback; B = 2", "fallback has b=1, and its definition gives b=2 by now"),
    ("reward = fallback; reward.__defaults__ = (5,)", "fallback has b=5, and its definition gives b=1"),
    ("reward = fallback; reward.__defaults__ = None", "and its definition gives b=1"),
    ("reward = fallback; reward.__kwdefaults__ = {'c': 9}", "fallback has c=9, and its definition gives c=1"),
    ("reward = plain; reward.model = object()", "plain.model, a object, was set after the definition"),
    ("reward = R; R.__call__ = spare", "R.__call__ was replaced by another function after its definition"),
    ("reward = R; R.half = R.__call__", "R.half, a function, was set after the definition"),
    ("reward = R; R.more = spare", "R.more, a function, was set after the definition"),
    ("reward = R; R.__call__.__defaults__ = (None, '')", "R.__call__ has "),
    ("reward = R; del R.kept", "R.kept was removed after its definition"),
])  # fmt: skip
def test_what_is_not_as_it_was_defined_is_refused(after: str, said: str, alone: bool) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        reward_path(defined(WRAPS + after, alone)["reward"], Path("runs"))
    assert not Path("runs").exists()


def test_two_definitions_of_one_name_are_refused() -> None:
    code = "def f(n):\n    return 1\n\ng = f\n\ndef f(n):\n    return 2\n\ndef h(task, text):\n    return f(1) + g(1)"
    with pytest.raises(ValueError, match=r"both defined as f|two things by f"):
        source_of([defined(code)["h"]])
    code = "def f(n):\n    return n and f(n - 1)\n\ng = f\n\ndef f(n):\n    return 2"
    with pytest.raises(ValueError, match="f uses f, which is another one by now"):
        source_of([defined(code)["g"]])


KINDS = """
from enum import Enum, IntEnum
from typing import NamedTuple

FIRST = 1

class Kind(Enum):
    LONG, SHORT = 1, 2

class Size:
    most = 3

class Named(IntEnum):
    LONG, SHORT = FIRST, 2

    def said(self):
        return self.name

class Pair(NamedTuple):
    a: int = 3

    def twice(self):
        return 2 * self.a

def pair(task, text):
    return Pair().twice()

def kind(task, text):
    return Kind.LONG.value

def size(task, text):
    return Size.most

def named(task, text):
    return Named(len(text)).said()
"""


def test_classes_without_functions_are_told_apart() -> None:
    found = defined(KINDS)
    assert back(found["named"])(None, "a") == "LONG" and back(found["pair"])(None, "") == 6
    with pytest.raises(ValueError, match="Named has members whose values are others by now"):
        source_of([defined(f"{KINDS}\nFIRST = 5")["named"]])
    for name, cls in (("kind", "Kind"), ("size", "Size")):
        with pytest.raises(ValueError, match=f"{cls} is a class without functions of its own"):
            source_of([found[name]])


def test_a_file_that_cannot_be_run_is_refused() -> None:
    code = "def marked(f):\n    ONCE.pop()\n    return f\n\nONCE = [1]\n\n@marked\ndef f(task, text):\n    return 1.0"
    with pytest.raises(ValueError, match=r"that file cannot be run \(IndexError"):
        source_of([defined(code)["f"]])
