"""Scorers with arguments and state: functions, classes, factories; what a kill does to the state."""

import asyncio
from pathlib import Path

import pytest

from gruppo.tasks import Scorer, Task
from gruppo.tasks.judge import Judge

CODE = '''
import time

def scaled(task, text, scale=1.0, words=()):
    return scale * len(words) if words else scale

def batched(tasks, texts, *, scale):
    return [scale] * len(texts)

class New:
    """1 for a text that was not seen before."""
    def __init__(self, worth=1.0):
        if worth < 0: raise ValueError(f"worth={worth}: a negative worth. Use 0 or more.")
        self.worth, self.seen = worth, set()

    def __call__(self, task, text):
        if text == "hang": time.sleep(600)
        new = text not in self.seen
        self.seen.add(text)
        return self.worth * new

class Batch:
    def __init__(self): self.calls = 0
    def __call__(self, tasks, texts):
        self.calls += 1
        return [self.calls] * len(texts)

def factory(*, offset):
    count = [0]
    def score(task, text):
        count[0] += 1
        return offset + count[0]
    return score

def near(task, text, *, credit=0.5, least): return 1.0
def plain(task, text): return 1.0
def no_scorer(*, x): return 3
class Broken:
    def __init__(self): raise RuntimeError("no licence")
class Silent:
    pass
'''

TASK = Task("t", "1+1=", "2", 1, "own")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("state") / "state.py"
    path.write_text(CODE)
    return str(path)


def scores(judge: Judge, *texts: str) -> list[float | str]:
    return [v.components.get("task", v.status) for v in asyncio.run(judge.score([(TASK, t) for t in texts]))]


@pytest.mark.parametrize(
    ("name", "args", "want"),
    [
        ("scaled", {}, [1.0, 1.0]),
        ("scaled", {"scale": 3}, [3.0, 3.0]),
        ("scaled", {"scale": 2, "words": ["a", "b"]}, [4.0, 4.0]),
        ("batched", {"scale": 0.5}, [0.5, 0.5]),
        ("New", {}, [1.0, 0.0]),
        ("New", {"worth": 2.5}, [2.5, 0.0]),
        ("Batch", {}, [1.0, 1.0]),
        ("factory", {"offset": 10}, [11.0, 12.0]),
    ],
)
def test_arguments_reach_the_scorer(file: str, name: str, args: dict[str, object], want: list[float]) -> None:
    with Judge(Scorer(f"{file}:{name}", args)) as judge:
        assert scores(judge, "a", "a") == want


def test_state_lasts_between_calls_and_ends_with_the_worker(file: str) -> None:
    with Judge(Scorer(f"{file}:New"), seconds=0.5) as judge:
        assert scores(judge, "a", "b") == [1.0, 1.0]
        assert scores(judge, "a") == [0.0]
        assert scores(judge, "hang", "a") == ["timeout", 1.0]  # a new one, which has seen nothing
        assert judge.restarts == 1


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("scaled", {"scal": 2}, r"cannot be called with scal=2.*Did you mean 'scale'\?.*Its arguments: scale, words"),
        ("scaled", {"scal": 2}, r"\(it has no argument 'scal'\)"),
        ("near", {"credt": 0.1}, r"near cannot be called with credt=0\.1 \(it has no argument 'credt'\)"),
        ("near", {"credt": 0.1}, r"Did you mean 'credit'\? Its arguments: credit, least\."),
        ("near", {"credit": 1}, r"\(missing a required (keyword-only )?argument: 'least'\)"),
        ("plain", {"credit": 1}, r"\(it has no argument 'credit'\).*It has no arguments: leave task\.args out"),
        ("New", {"worth": -1}, "a negative worth"),
        ("New", {"wort": 1}, "Did you mean 'worth'"),
        ("factory", {}, "parameters"),
        ("factory", {"ofset": 1}, "Did you mean 'offset'"),
        ("no_scorer", {"x": 1}, "int and cannot be called"),
        ("Broken", {}, "no licence"),
        ("Silent", {}, "Silent and cannot be called"),
    ],
)
def test_what_cannot_be_made_is_refused(file: str, name: str, args: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){said}"):
        Judge(Scorer(f"{file}:{name}", args)).start()


def test_the_worker_stays_light() -> None:
    import subprocess
    import sys

    code = "import gruppo.tasks.worker, gruppo.tasks.scorers, sys; print([m for m in sys.modules if m in {HEAVY}])"
    heavy = ("numpy", "torch", "sympy", "math_verify", "datasets", "reasoning_gym", "jsonschema", "pyarrow", "asyncio")
    found = subprocess.run(
        [sys.executable, "-c", code.replace("{HEAVY}", repr(heavy))], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
    assert Path(__file__).exists()
