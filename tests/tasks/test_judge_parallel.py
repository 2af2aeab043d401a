"""Several answers at once: overlap, order, hangs, cancellation, and which scorers have one worker."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from overlaps import SPANS, noted, peak, until

from gruppo.tasks import Scorer, Task, load_task
from gruppo.tasks.judge import PATIENCE, Judge, Verdict
from gruppo.tasks.pool import Lane

SCORERS = f"""{SPANS}
import os

def slow(task, text):
    if text == "hang": note(time.monotonic()); time.sleep(600)
    if text == "die": os._exit(7)
    if text == "pid": time.sleep(0.1); return os.getpid()
    with span(): time.sleep(float(text))
    return float(text)

def batch(tasks, texts):
    time.sleep(0.3)
    return [os.getpid()] * len(texts)

class Counter:
    def __init__(self): self.seen = 0
    def __call__(self, task, text):
        time.sleep(0.05)
        self.seen += 1
        return {{"task": self.seen, "pid": os.getpid()}}

class Free(Counter):
    stateless = True

def factory(*, start):
    counter = Counter()
    counter.seen = start
    return counter

instance = Counter()

def first_then_slow(task, text):
    if text == "fast": return 1
    with span(): time.sleep(float(text))
    return os.getpid()
"""
TASK = Task("t", "1+1=", "2", 1, "own")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("parallel") / "scorers.py"
    path.write_text(SCORERS)
    return str(path)


def items(*texts: str) -> list[tuple[Task, str]]:
    return [(TASK, text) for text in texts]


def tasks_of(verdicts: list[Verdict]) -> list[float | str]:
    return [v.components.get("task", v.status) for v in verdicts]


def test_slow_answers_overlap_and_keep_their_order(file: str) -> None:
    texts = [f"{0.3 + i / 1000}" for i in range(8)]

    def at_once() -> int:
        noted(file)
        assert tasks_of(asyncio.run(judge.score(items(*texts)))) == [float(t) for t in texts]
        return peak(noted(file))

    with Judge(f"{file}:slow", workers=4) as judge:
        assert until(at_once, 4) == 4
        assert until(at_once, 4, tries=2) == 4, "the workers stay"
        assert judge.restarts == 0


def test_concurrent_calls_overlap(file: str) -> None:
    async def three() -> list[list[Verdict]]:
        return await asyncio.gather(*(judge.score(items(t, t)) for t in ("0.4", "0.401", "0.402")))

    def at_once() -> int:
        noted(file)
        assert [tasks_of(verdicts) for verdicts in asyncio.run(three())] == [[t, t] for t in (0.4, 0.401, 0.402)]
        return peak(noted(file))

    with Judge(f"{file}:slow", workers=6) as judge:
        asyncio.run(judge.score(items(*["0.2"] * 12)))  # starts the workers
        assert until(at_once, 6) == 6, "two of each call"


def test_calls_of_single_answers_overlap(file: str) -> None:
    """A rollout that scores each answer as it comes."""

    async def all_of() -> list[list[Verdict]]:
        return await asyncio.gather(*(judge.score(items(f"{0.2 + i / 1000}")) for i in range(12)))

    def at_once() -> int:
        noted(file)
        assert [tasks_of(v) for v in asyncio.run(all_of())] == [[0.2 + i / 1000] for i in range(12)]
        return peak(noted(file))

    with Judge(f"{file}:slow", workers=4) as judge:
        assert until(at_once, 4) == 4


def test_one_hang_and_one_crash_among_others(file: str) -> None:
    texts = ["0.01", "hang", "0.02", "0.03", "die", "0.04", "0.05", "0.06"]
    with Judge(f"{file}:slow", seconds=0.6, workers=3) as judge:
        for _ in range(2):
            verdicts = asyncio.run(judge.score(items(*texts)))
            assert tasks_of(verdicts) == [0.01, "timeout", 0.02, 0.03, "env_error", 0.04, 0.05, 0.06]
            assert "longer than 0.6 s" in verdicts[1].error and "exit code 7" in verdicts[4].error
        assert judge.restarts == 4


def test_hangs_overlap(file: str) -> None:
    calls = 0

    def at_once() -> int:
        nonlocal calls
        calls += 1
        asyncio.run(judge.score(items(*["0.2"] * 12)))  # starts the workers
        noted(file)
        assert tasks_of(asyncio.run(judge.score(items(*["hang"] * 4)))) == ["timeout"] * 4
        return peak([(begun, begun + judge.seconds) for (begun,) in noted(file)])

    with Judge(f"{file}:slow", seconds=0.8, workers=4) as judge:
        assert until(at_once, 3) >= 3, "of one that waits for another, this would be 1"
        assert judge.restarts == 4 * calls


def test_cancellation_leaves_the_judge_usable(file: str) -> None:
    async def cancelled(judge: Judge) -> list[Verdict]:
        call = asyncio.create_task(judge.score(items(*["0.3"] * 40)))
        other = asyncio.create_task(judge.score(items("0.11", "0.12")))
        await asyncio.sleep(0.4)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        verdicts = await judge.score(items("0.01", "0.02"))
        assert len(noted(file)) < 30, "the answers that had not begun are not scored"
        assert tasks_of(await other) == [0.11, 0.12]
        return verdicts

    noted(file)
    with Judge(f"{file}:slow", workers=2) as judge:
        assert tasks_of(asyncio.run(cancelled(judge))) == [0.01, 0.02]
        with pytest.raises(asyncio.TimeoutError):
            asyncio.run(asyncio.wait_for(judge.score(items("0.5", "0.5")), 0.1))
        assert tasks_of(asyncio.run(judge.score(items("0.03")))) == [0.03]  # in another event loop
        assert judge.restarts == 0


def test_interrupted_run_leaves_the_judge_usable(file: str) -> None:
    async def interrupted(judge: Judge) -> None:
        asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGINT)
        await judge.score(items(*["0.2"] * 50))

    with Judge(f"{file}:slow", workers=2) as judge:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever a test before has left
        try:
            with pytest.raises(KeyboardInterrupt):
                asyncio.run(interrupted(judge))
        finally:
            signal.signal(signal.SIGINT, before)
        assert tasks_of(asyncio.run(judge.score(items("0.01")))) == [0.01]


def test_interrupted_while_a_lane_starts_it_closes(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal came between a lane and its start: its thread was joined, which fails, with a traceback at the end."""
    judge = Judge(f"{file}:slow")

    def interrupted(lane: Lane) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Lane, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        judge.start()
    assert len(judge._pool._lanes) == 1
    judge.close()
    assert not judge._pool._lanes


def test_closing_fails_the_calls_that_wait(file: str) -> None:
    async def closed(judge: Judge) -> None:
        call = asyncio.create_task(judge.score(items(*["0.2"] * 20)))
        await asyncio.sleep(0.3)
        judge.close()
        with pytest.raises(RuntimeError, match="the judge was closed"):
            await call
        assert tasks_of(await judge.score(items("0.01"))) == [0.01]

    judge = Judge(f"{file}:slow", workers=2)
    asyncio.run(closed(judge))
    judge.close()
    assert judge.restarts == 0


def test_many_calls_with_many_texts_are_always_the_same(file: str) -> None:
    texts = [f"{(i * 7 % 11) / 500:.3f}" for i in range(120)]

    async def calls(judge: Judge) -> list[list[Verdict]]:
        return await asyncio.gather(*(judge.score(items(*texts[i::6])) for i in range(6)))

    wanted = [[float(t) for t in texts[i::6]] for i in range(6)]
    for workers in (1, 3):
        with Judge(f"{file}:slow", workers=workers) as judge:
            assert [tasks_of(v) for v in asyncio.run(calls(judge))] == wanted


def processes(judge: Judge, count: int = 16) -> int:
    return len({v.components["task"] for v in asyncio.run(judge.score(items(*["pid"] * count)))})


def test_a_function_has_several_workers_and_never_more_than_allowed(file: str) -> None:
    for workers in (1, 3):
        with Judge(f"{file}:slow", workers=workers) as judge:
            assert until(lambda judge=judge: processes(judge), workers) == workers
            assert processes(judge) <= workers


@pytest.mark.parametrize("scorer", [Scorer("Counter"), Scorer("factory", {"start": 0}), Scorer("instance")])
def test_a_scorer_with_state_has_one_worker_that_sees_the_calls_in_order(file: str, scorer: Scorer) -> None:
    async def calls(judge: Judge) -> list[list[Verdict]]:
        return await asyncio.gather(*(judge.score(items(*"abcd")) for _ in range(4)))

    with Judge(Scorer(f"{file}:{scorer.path}", scorer.args), workers=4) as judge:
        found = [v for verdicts in asyncio.run(calls(judge)) for v in verdicts]
    assert tasks_of(found) == [*range(1, 17)] and len({v.components["pid"] for v in found}) == 1


def test_a_class_may_say_that_it_has_no_state(file: str) -> None:
    with Judge(f"{file}:Free", workers=3) as judge:
        assert until(lambda: len({v.components["pid"] for v in asyncio.run(judge.score(items(*["x"] * 30)))}), 3) == 3


def test_a_batched_scorer_has_one_worker(file: str) -> None:
    async def calls(judge: Judge) -> list[list[Verdict]]:
        return await asyncio.gather(*(judge.score(items("a", "b")) for _ in range(6)))

    with Judge(f"{file}:batch", workers=4) as judge:
        assert len({v.components["task"] for verdicts in asyncio.run(calls(judge)) for v in verdicts}) == 1


def test_a_fast_scorer_keeps_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gruppo.tasks.judge.PATIENCE", 60.0)  # on a busy machine no scorer is fast
    tasks = load_task("addition")
    with Judge(tasks.scorer, workers=4) as judge:
        for _ in range(5):
            asyncio.run(judge.score([(t, t.answer) for t in tasks.train[:2000]]))
        assert len(judge._pool._lanes) == 1


def test_answers_stuck_in_a_message_are_handed_back(file: str) -> None:
    """After many fast answers, a message holds many; slow ones among them still reach other workers."""

    def at_once() -> int:
        asyncio.run(judge.score(items(*["fast"] * 500)))
        noted(file)
        asyncio.run(judge.score(items(*["0.2"] * 16)))
        return peak(noted(file))

    with Judge(f"{file}:first_then_slow", workers=4) as judge:
        assert until(at_once, 3) >= 3


def test_groups_of_answers_overlap(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        f"{SPANS}\n"
        "def score(task, text): return 1.0\n"
        "def find(task, text):\n"
        "    with span(): time.sleep(0.3)\n"
        "    return text\n"
        "score.answer = find\n"
    )

    def at_once() -> int:
        assert asyncio.run(judge.answers([items(c) for c in "abcdefgh"])) == [[c] for c in "abcdefgh"]
        return peak(noted(f"{tmp_path}/mine.py"))

    with Judge(f"{tmp_path}/mine.py:score", workers=4) as judge:
        assert until(at_once, 4) == 4


def test_a_further_worker_that_cannot_start_is_not_missed(tmp_path: Path) -> None:
    """It loads once, and a second process finds the file that the first one wrote."""
    (tmp_path / "once.py").write_text(
        "import time\nfrom pathlib import Path\n"
        f"lock = Path({str(tmp_path / 'lock')!r})\n"
        "if lock.exists(): raise OSError('in use')\n"
        "lock.touch()\n"
        "def score(task, text):\n    time.sleep(0.1)\n    return float(text)\n"
    )
    with Judge(f"{tmp_path}/once.py:score", workers=3) as judge:
        assert tasks_of(asyncio.run(judge.score(items(*map(str, range(8)))))) == [*range(8)]
        until = time.monotonic() + 60
        while len(judge._pool._lanes) > 1 and time.monotonic() < until:  # a slow one may still be about to fail
            time.sleep(0.01)
        assert judge.restarts == 0 and len(judge._pool._lanes) == 1


def test_settings() -> None:
    assert PATIENCE == 0.25
    with pytest.raises(ValueError, match=r"workers=-1 is out of range: use"):
        Judge("m:f", workers=-1)
