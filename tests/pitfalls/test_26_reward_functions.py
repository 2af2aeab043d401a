"""Pitfall 26: "reward fn: hangs, swallowed exceptions → 0, signal.alarm off main thread, sympy loops". Rule:
"killable process, error ≠ 0, timeout counted".

The real judge, through the walk, from a thread that is not the main one. If the bug came back, the test would
hang, an answer would get 0, or its neighbours would be lost with it.
"""

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import SCORERS, answer, running

from gruppo.data import Episode, Status
from gruppo.train.config import TaskConfig
from gruppo.train.metrics import episode_metrics

QUICK = TaskConfig(reward=f"{SCORERS}:told", seconds=0.4)


def episodes_of(run: Any, texts: list[str]) -> list[Episode]:
    made = [answer(i, {}, text=text, index=0) for i, text in enumerate(texts)]
    for e in made:
        e.task = run.tasks.train[0].uid
    return made


def score(run: Any, episodes: list[Episode]) -> list[Episode]:
    return asyncio.run(run.walk.rewarded(run.context(0), episodes))


def in_a_thread(work: Callable[[], Any]) -> Any:
    out: list[Any] = []

    def catch() -> None:
        try:
            out.append(work())
        except Exception as error:
            out.append(error)

    thread = threading.Thread(target=catch)
    thread.start()
    thread.join(timeout=200)
    assert not thread.is_alive(), "the scorer hung, and nobody killed it"
    return out[0]


def test_whatever_a_scorer_does_each_answer_has_its_own_status(policy: Path) -> None:
    with running(policy, task=QUICK) as run:
        texts = ["right", "raise", "sleep", "right", "spin", "wrong", "=nan"]
        begun = time.monotonic()
        episodes = in_a_thread(lambda: score(run, episodes_of(run, texts)))
        assert time.monotonic() - begun < 100  # one of them would sleep for 600
        assert [e.status.name for e in episodes] == ["OK", "ENV_ERROR", "TIMEOUT", "OK", "TIMEOUT", "OK", "ENV_ERROR"]
        assert [e.reward for e in episodes] == [{"task": 1.0}, {}, {}, {"task": 1.0}, {}, {"task": 0.0}, {}]
        assert "no such unit" in episodes[1].error and "longer than" in episodes[2].error
        facts = episode_metrics(episodes)
        assert facts["failed"] == pytest.approx(4 / 7) and facts["reward"] == pytest.approx(2 / 3)
        assert run.judge.restarts == 2


def test_an_alarm_does_not_work_in_a_thread() -> None:
    """The bug, planted: the usual timeout cannot even be set, and `except: return 0` makes a reward of it."""

    def scored() -> float:
        try:
            signal.signal(signal.SIGALRM, lambda *_: None)
            return 1.0
        except Exception:
            return 0.0

    assert in_a_thread(scored) == 0.0  # a right answer, scored 0


def test_a_failure_stays_a_failure_when_scored_again(policy: Path) -> None:
    """What was judged is not judged twice, and what failed does not come back as judged."""
    with running(policy, task=QUICK) as run:
        episodes = episodes_of(run, ["right", "raise"])
        for _ in range(2):
            score(run, episodes)
        assert [e.status for e in episodes] == [Status.OK, Status.ENV_ERROR]
        assert episodes[0].reward == {"task": 1.0}
