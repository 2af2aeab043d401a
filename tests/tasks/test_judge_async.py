"""Rewards that are `async def`: many answers at once in one worker, and each fails alone."""

import asyncio
from pathlib import Path

import pytest
from overlaps import until

from gruppo.tasks import Scorer, Task
from gruppo.tasks.judge import Judge, Verdict

SCORERS = """
import asyncio, functools, os, sys, time
from pathlib import Path

flying = peak = 0

async def one(task, text, scale=1.0):
    global flying, peak
    flying += 1
    peak = max(peak, flying)
    try:
        if text == "raise": raise RuntimeError("no such unit")
        if text == "exit": sys.exit(3)
        if text == "die": os._exit(7)
        if text == "own": raise TimeoutError("the user's own")
        if text == "hang": await asyncio.sleep(600)
        if text == "block": time.sleep(600)
        if text == "peak": return peak
        if text == "wait":
            while not (Path(__file__).parent / "go").exists(): await asyncio.sleep(0.01)
            return 1.0
        if text == "pid": await asyncio.sleep(0.1); return os.getpid()
        if text == "deaf":
            while True:
                try: await asyncio.sleep(600)
                except asyncio.CancelledError: pass
        await asyncio.sleep(float(text))
        return scale * float(text)
    finally:
        flying -= 1

def wrapped(task, text): return one(task, text)  # returns what must be awaited

async def batch(tasks, texts):
    return await asyncio.gather(*(one(*x) for x in zip(tasks, texts)))

class Counter:
    def __init__(self, start=0): self.seen, self.loop, self.flying, self.peak = start, None, 0, 0
    async def __call__(self, task, text):
        if text == "peak": return self.peak
        self.seen += 1
        self.flying += 1
        self.peak = max(self.peak, self.flying)
        mine = self.seen
        self.loop = self.loop or asyncio.get_running_loop()
        assert self.loop is asyncio.get_running_loop()
        await asyncio.sleep(0.05)
        self.flying -= 1
        return mine

async def answering(task, text): return 1.0
answering.answer = lambda task, text: text.upper()
"""
TASK = Task("t", "1+1=", "2", 1, "own")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("async") / "scorers.py"
    path.write_text(SCORERS)
    return str(path)


def score(judge: Judge, *texts: str) -> list[Verdict]:
    return asyncio.run(judge.score([(TASK, text) for text in texts]))


def tasks_of(verdicts: list[Verdict]) -> list[float | str]:
    return [v.components.get("task", v.status) for v in verdicts]


def test_many_answers_at_once_in_one_worker(file: str) -> None:
    texts = [f"{0.2 + i / 10000}" for i in range(64)]
    with Judge(f"{file}:one") as judge:
        assert tasks_of(score(judge, *texts)) == [float(t) for t in texts]
        (most,) = tasks_of(score(judge, "peak"))
        assert isinstance(most, float) and 32 <= most <= 64
        assert len(judge._pool._lanes) == 1 and judge.restarts == 0 and not judge.in_order


def test_as_many_as_allowed_and_never_more(file: str) -> None:
    for allowed in (1, 5):
        with Judge(f"{file}:one", concurrency=allowed) as judge:
            score(judge, *["0.01"] * 30)
            assert tasks_of(score(judge, "peak")) == [allowed]


def test_a_slow_answer_holds_up_nothing(file: str) -> None:
    """No waves: as soon as one answer is judged, the next one begins, also that of another call."""

    go = Path(file).parent / "go"

    async def calls(judge: Judge) -> None:
        slow = asyncio.create_task(judge.score([(TASK, "wait")]))  # until the others are done
        for call in asyncio.as_completed([judge.score([(TASK, "0.05")] * 20), judge.score([(TASK, "0.06")])]):
            assert {v.status for v in await call} == {"ok"}
        assert not slow.done()
        go.touch()
        assert tasks_of(await slow) == [1.0]

    with Judge(f"{file}:one", seconds=30, concurrency=4) as judge:
        asyncio.run(calls(judge))
    go.unlink()


def test_several_workers_if_they_are_asked_for(file: str) -> None:
    with Judge(f"{file}:one", concurrency=2, workers=3) as judge:
        assert until(lambda: len({v.components["task"] for v in score(judge, *["pid"] * 40)}), 3) == 3


def test_failures_hit_their_own_answer(file: str) -> None:
    with Judge(f"{file}:one", seconds=1.5) as judge:
        verdicts = score(judge, "0.3", "hang", "raise", "0.31", "exit", "own", "x", "0.32")
        assert tasks_of(verdicts) == [0.3, "timeout", "env_error", 0.31, *["env_error"] * 3, 0.32]
        assert "longer than 1.5 s" in verdicts[1].error and "Raise task.seconds" in verdicts[1].error
        said = ("RuntimeError: no such unit", "SystemExit: 3", "the user's own", "ValueError")
        assert all(s in v.error for s, v in zip(said, (verdicts[2], *verdicts[4:7]), strict=True))
        assert not any("together.py" in v.error for v in verdicts), "the author's own lines only"
        assert judge.restarts == 0, "a call that is too late is ended, and its worker lives"


@pytest.mark.parametrize(("text", "status"), [("block", "timeout"), ("deaf", "timeout"), ("die", "env_error")])
def test_what_takes_the_worker_along_is_found(file: str, text: str, status: str) -> None:
    """The worker had others in hand: they are judged again, and only the guilty one fails."""
    texts = [*["0.01"] * 5, text, *["0.02"] * 5]
    with Judge(f"{file}:one", seconds=0.3) as judge:
        assert tasks_of(score(judge, *texts)) == [float(t) if t != text else status for t in texts]
        assert judge.restarts >= 1
        assert tasks_of(score(judge, "0.01")) == [0.01]


def test_tasks_that_cannot_be_sent(file: str) -> None:
    odd = Task("t", "", "", 1, "own", meta={"f": lambda: 1})
    with Judge(f"{file}:one") as judge:
        verdicts = asyncio.run(judge.score([(TASK, "0.01"), (odd, "0.01"), (TASK, "0.02")]))
    assert tasks_of(verdicts) == [0.01, "env_error", 0.02] and "plain values in Task.meta" in verdicts[1].error


def test_arguments_classes_and_factories(file: str) -> None:
    with Judge(Scorer(f"{file}:one", {"scale": 3.0})) as judge:
        assert tasks_of(score(judge, "0.5")) == [1.5]
    with Judge(Scorer(f"{file}:Counter", {"start": 10}), workers=4) as judge:
        assert tasks_of(score(judge, *"abcdefgh")) == [*range(11, 19)], "begun in order, in one process"
        assert tasks_of(score(judge, "a")) == [19] and judge.in_order
        for _ in range(8):  # a busy machine may hand them over a few at a time
            score(judge, *"x" * 40)
            highest = max(v.components["task"] for v in score(judge, "peak"))
            if highest > 10:
                break
        assert highest > 10


def test_what_only_returns_a_coroutine_and_what_is_batched(file: str) -> None:
    for name in ("wrapped", "batch"):
        with Judge(f"{file}:{name}") as judge:
            assert tasks_of(score(judge, "0.01", "0.02")) == [0.01, 0.02]
            assert tasks_of(score(judge, "0.03")) == [0.03]


def test_answers_of_groups(file: str) -> None:
    with Judge(f"{file}:answering") as judge:
        assert asyncio.run(judge.answers([[(TASK, "a"), (TASK, "b")]])) == [["A", "B"]]


def test_cancellation_and_closing(file: str) -> None:
    async def cancelled(judge: Judge) -> None:
        call = asyncio.create_task(judge.score([(TASK, "0.5")] * 10))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert tasks_of(await judge.score([(TASK, "0.01")])) == [0.01]
        call = asyncio.create_task(judge.score([(TASK, "0.5")] * 10))
        await asyncio.sleep(0.1)
        judge.close()
        with pytest.raises(RuntimeError, match="the judge was closed"):
            await call
        assert tasks_of(await judge.score([(TASK, "0.01")])) == [0.01]

    judge = Judge(f"{file}:one", concurrency=2)
    asyncio.run(cancelled(judge))
    judge.close()
    assert judge.restarts == 0
