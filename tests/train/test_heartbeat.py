"""A sign of life: what it says and when, in a log as on a terminal, and that it changes nothing."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from train_runs import SMALL, gruppo, train

from gruppo.engines.native import NativeEngine
from gruppo.stages.under_way import counted, under_way
from gruppo.train import heartbeat, slow
from gruppo.train.folder import RunFolder
from gruppo.train.heartbeat import Heartbeat


def test_it_speaks_after_ten_silent_seconds_and_then_ever_more_rarely() -> None:
    said: list[str] = []
    spoken, tokens = 0.0, 100
    beat = Heartbeat(said.append, lambda: spoken, lambda: tokens)
    beat.look(1000.0)
    found: dict[int, int] = {}
    with under_way(found, 32):
        beat.look(1001.0)
        beat.look(1010.9)
        assert said == []
        tokens = 1334
        beat.look(1011.0)
        assert said.pop() == "sampling: 0 of 32 answers, 1,234 tokens after 10 s"
        found |= dict.fromkeys(range(6), 0)
        beat.look(1030.9)
        assert said == []
        beat.look(1031.0)
        assert said.pop() == "sampling: 6 of 32 answers, 1,234 tokens after 30 s"
        spoken = 1070.0  # somebody else has said something
        beat.look(1079.0)
        assert said == []
        beat.look(1080.0)
        assert said.pop().endswith("after 79 s")
        beat.look(1139.0)
        assert said == []
        beat.look(1140.0)
        assert said.pop().endswith("after 139 s"), "one in a minute, and no rarer"
        found |= dict.fromkeys(range(32), 0)
        beat.look(1300.0)
        assert said == [], "all answers are there: something else is slow, and says so"
    beat.look(1400.0)
    assert said == [] and counted() == (0, 0)


def test_another_wave_counts_anew() -> None:
    said: list[str] = []
    beat = Heartbeat(said.append, what="episodes")
    with under_way([0], 4):
        beat.look(100.0)
    with under_way([0, 1], 5):
        beat.look(109.0)
        beat.look(118.0)
        assert said == []
        beat.look(119.0)
        with under_way([], 3):
            beat.look(120.0)
            beat.look(140.0)
    assert said == ["sampling: 2 of 5 episodes after 10 s", "sampling: 2 of 8 episodes after 20 s"]


@pytest.fixture
def slow_and_impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every wave of sampling takes half a second, and silence is told after a tenth."""
    plain = NativeEngine._deliver

    def slowly(self: NativeEngine, ended: Any) -> None:
        time.sleep(0.1)
        plain(self, ended)

    with monkeypatch.context() as m:
        m.setattr(NativeEngine, "_deliver", slowly)
        m.setattr(slow, "PATIENCE", 0.05)
        for name, seconds in {"SILENCE": 0.1, "RARELY": 0.0, "TICK": 0.02}.items():
            m.setattr(heartbeat, name, seconds)
        yield


def test_a_slow_run_says_so_in_step_zero_evaluations_and_steps(
    slow_and_impatient: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("steps=1", "prompts=2", "samples=8", "eval.prompts=9", "save.checkpoint_every=0")
    assert train("told", *settings) == 0
    words = capsys.readouterr().out
    first, *_ = words.splitlines()
    assert first == "run folder  runs/told"
    signs = re.findall(r"^sampling: \d+ of (\d+) answers, [\d,]+ tokens after \d+ s$", words, re.M)
    assert set(signs) == {"16", "9"}, words
    before, after = words.split("measuring held-out answers before training")
    assert "of 16 answers" in before, "step zero"
    assert "of 9 answers" in after and "of 16 answers" in after
    for name, more in {"hidden": "show=0", "silent": "--json"}.items():
        assert train(name, *settings, more) == 0
        assert "sampling: " not in capsys.readouterr().out
    told, hidden = (
        [{k: v for k, v in row.items() if "second" not in k} for row in RunFolder(Path("runs", name)).metrics()]
        for name in ("told", "hidden")
    )
    assert told == hidden
    assert gruppo("doctor", *SMALL, *settings) == 0
    assert "sampling: " in capsys.readouterr().out
    assert gruppo("eval", "runs/told") == 0
    assert "sampling: " in capsys.readouterr().err


def test_a_refused_run_leaves_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("gone", "model=nowhere") == 2
    assert capsys.readouterr().out == "" and not Path("runs/gone").exists()
