"""Values that can be neither stored nor waited for: they are refused, or a status of their answer."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gruppo.tasks import Task, TaskConfig
from gruppo.tasks.judge import Judge
from gruppo.tasks.worker import components, shown

HALF = "\udcff"  # half of a character: no codec takes it


@pytest.mark.parametrize("name", [HALF, f"a{HALF}b", "\ud800"])
def test_a_component_whose_name_is_no_text_is_a_failure(name: str) -> None:
    found, status, said = components({"task": 1.0, name: 1.0})
    assert (found, status) == ({}, "env_error")
    assert repr(name) in said and "cannot be stored. Rename it." in said
    assert said.encode() and shown("Ünïcode 語") == "Ünïcode 語"


def test_nothing_that_a_scorer_says_has_halves_of_characters(tmp_path: Path) -> None:
    """Names, the words of exceptions, and what it cannot judge: all can be printed."""
    (tmp_path / "odd.py").write_text(
        "from gruppo.tasks.worker import CannotJudge\n"
        "def score(task, text):\n"
        "    if text == 'name': return {'\\udcff': 1.0}\n"
        "    if text == 'raise': raise RuntimeError('\\udcff')\n"
        "    if text == 'cannot': raise CannotJudge('\\udcff')\n"
        "    return {'ö': 1.0}\n"
    )
    with Judge(f"{tmp_path}/odd.py:score") as judge:
        task = Task("t", "1+1=", "2", 1, "own")
        *odd, good = asyncio.run(judge.score([(task, text) for text in ("name", "raise", "cannot", "good")]))
    assert good.components == {"ö": 1.0}
    for verdict in odd:
        assert verdict.status == "env_error" and "\\udcff" in verdict.error and verdict.error.encode()


@pytest.mark.parametrize("name", ["seconds", "call_seconds", "start_seconds"])
def test_seconds_that_no_clock_can_wait(name: str) -> None:
    assert getattr(replace(TaskConfig(), **{name: 1e6}), name) == 1e6
    for value in (1e20, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=name):
            replace(TaskConfig(), **{name: value})
