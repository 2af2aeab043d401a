"""A scorer that is dead is told from one that hangs on some answers; limits of batched calls; what the user is told."""

import asyncio
import re
import time
from pathlib import Path

import pytest
from overlaps import SPANS, noted, peak, until

from gruppo.tasks import Task, TaskConfig, load_task
from gruppo.tasks import judge as judge_module
from gruppo.tasks.hangs import LEAST, Hangs
from gruppo.tasks.jobs import Job, Part, Verdict
from gruppo.tasks.judge import Judge, judge_of

SCORERS = f"""{SPANS}
import asyncio, os

def dead(task, text):
    note(1)
    if not (Path(__file__).parent / "alive").exists(): time.sleep(600)
    return 1.0

async def silent(task, text):
    note(1)
    await asyncio.sleep(600)

async def blocks(task, text):
    note(1)
    time.sleep(600)

def some(task, text):
    if task.uid == "bad" or text == "hang": time.sleep(600)
    return 1.0

def batch(tasks, texts):
    for text in texts: time.sleep(float(text))
    return [os.getpid()] * len(texts)

def shared(tasks, texts):
    time.sleep(0.5)
    return [{{"task": os.getpid(), "size": len(texts)}} for _ in texts]
shared.stateless = True

def slow_to_load(): pass
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("hangs") / "scorers.py"
    path.write_text(SCORERS)
    return str(path)


def task(uid: str) -> Task:
    return Task(uid, "", "", 1, "own")


def score(judge: Judge, *items: tuple[str, str]) -> list[Verdict]:
    return asyncio.run(judge.score([(task(uid), text) for uid, text in items]))


ANSWERS = [(f"t{i // 8}", "x") for i in range(128)]  # of 16 tasks, 8 each


@pytest.mark.parametrize(("name", "workers"), [("dead", 4), ("silent", 0)])
def test_a_dead_scorer_ends_a_call_within_seconds(file: str, name: str, workers: int) -> None:
    said: list[str] = []
    with Judge(f"{file}:{name}", seconds=0.5, workers=workers, concurrency=16, say=said.append) as judge:
        noted(file)
        verdicts = score(judge, *ANSWERS)
        tried = len(noted(file))
        print(f"{name}: {tried} of {len(ANSWERS)} answers were tried")
        assert 0 < tried < 64, "each one that hangs costs its seconds"
        assert {v.status for v in verdicts} == {"timeout"} and {str(v.components) for v in verdicts} == {"{}"}
        assert "Judging took longer than 0.5 s" in verdicts[0].error
        assert "times in a row (task.seconds=0.5), so it counts as dead" in verdicts[-1].error
        assert any("has hung" in s and "After" in s for s in said) and "counts as dead" in said[-1]
        score(judge, *ANSWERS)
        again = len(noted(file))
        print(f"and {again} of the next call")
        assert again <= 16, "the next call tries those that are taken at once, and no more"


def test_a_coroutine_that_blocks_its_loop_is_found_dead_by_those_that_hung_alone(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are judged one at a time, so not twice as many as `concurrency` must hang before the user hears of it."""
    said: list[str] = []
    monkeypatch.setattr("gruppo.tasks.flight.GRACE", 0.2)
    with Judge(f"{file}:blocks", seconds=0.2, concurrency=64, say=said.append) as judge:
        noted(file)
        verdicts = score(judge, *ANSWERS[:48])
        assert len(noted(file)) <= 48 + LEAST + 1 and judge._pool.hangs.row == LEAST
    assert {v.status for v in verdicts} == {"timeout"} and f"has hung {LEAST // 4} times" in said[0]
    assert "it blocks its event loop" in verdicts[0].error and "counts as dead" in verdicts[-1].error


def test_a_scorer_that_lives_again_is_used_again(file: str) -> None:
    with Judge(f"{file}:dead", seconds=0.3, workers=4, say=lambda s: None) as judge:
        score(judge, *ANSWERS[:40])
        assert judge._pool.hangs.dead
        (Path(file).parent / "alive").touch()
        assert {v.status for v in score(judge, *ANSWERS)} == {"ok"} and not judge._pool.hangs.dead
    (Path(file).parent / "alive").unlink()


def test_one_row_that_hangs_with_all_its_answers_is_not_a_dead_scorer(file: str) -> None:
    items = [*[("bad", "x")] * 16, *ANSWERS[:16]]
    with Judge(f"{file}:some", seconds=0.3, workers=2, say=lambda s: None) as judge:
        assert [v.status for v in score(judge, *items)] == ["timeout"] * 16 + ["ok"] * 16
        assert not judge._pool.hangs.dead
    with Judge(f"{file}:dead", seconds=0.3, workers=1, say=lambda s: None) as judge:
        score(judge, *ANSWERS)
        assert judge._pool.hangs.row == LEAST, "after a few hangs of one task, others are tried first"


# ---- the rule itself


def counted(outcomes: str, at_once: int = 1, tasks: int = 8) -> Hangs:
    """`.` is a verdict, `h` a hang; the tasks take turns."""
    hangs = Hangs(1.0)
    job = Job("score", [(task(f"t{i % tasks}"), "") for i in range(len(outcomes))])
    for i, c in enumerate(outcomes):
        hangs.count(Part(job, [i]), [Verdict({}, "timeout") if c == "h" else [{"task": 1.0}, "ok", ""]], at_once)
    return hangs


def test_the_rule() -> None:
    assert not counted("h" * (LEAST - 1)).dead and counted("h" * LEAST).dead
    assert counted("." * 50 + "h" * LEAST).dead
    assert not counted("h" * 50 + ".").dead, "one verdict is a sign of life"
    assert not counted("h" * 31, at_once=16).dead and counted("h" * 32, at_once=16).dead
    assert counted("h" * 50, tasks=2).dead, "all tasks of a call with few"
    one_row = [(task("bad"), "")] * 40 + [(task(f"t{i}"), "") for i in range(9)]
    hangs = Hangs(1.0)
    hangs.count(Part(Job("score", one_row), list(range(40))), [Verdict({}, "timeout")] * 40, 1)
    assert not hangs.dead


def test_a_scorer_that_hangs_often_needs_a_longer_row() -> None:
    import random

    draw = random.Random(0)
    for share in (0.2, 0.5, 0.8):
        outcomes = "." + "".join("h" if draw.random() < share else "." for _ in range(3000))
        assert not any(counted(outcomes[:n]).dead for n in range(0, 3000, 500)), share
        assert any("dead" in note for note in counted(outcomes).notes) is False
    assert counted("h." * 50 + "h" * 20).dead and not counted("h." * 50 + "h" * 18).dead  # 2^-20 ≈ 1e-6


# ---- batched calls


def test_a_batched_call_has_the_seconds_of_each_of_its_answers(file: str) -> None:
    with Judge(f"{file}:batch", seconds=0.5) as judge:
        assert [v.status for v in score(judge, *[("t", "0.25")] * 4)] == ["ok"] * 4  # 1 s of 2
        begun = time.monotonic()
        (one, two) = score(judge, ("t", "600"), ("t", "0"))
        assert 1.0 <= time.monotonic() - begun < 60  # it would sleep for 600
        assert one == two and one.status == "timeout"
        assert "longer than 1 s" in one.error and "Raise task.seconds (now 0.5 per answer)" in one.error


def test_or_a_limit_of_its_own(file: str) -> None:
    with Judge(f"{file}:batch", seconds=60, call_seconds=0.5) as judge:
        (one, _) = score(judge, ("t", "600"), ("t", "0"))
        assert "longer than 0.5 s" in one.error and "Raise task.call_seconds" in one.error


def test_a_batched_function_that_is_stateless_shares_a_call_among_workers(file: str) -> None:
    with Judge(f"{file}:shared", workers=4) as judge:
        assert not judge.in_order
        until(lambda: len({v.components["task"] for v in score(judge, *[("t", "x")] * 10)}), 4)  # starts the workers
        verdicts = score(judge, *[("t", "x")] * 10)
        assert {v.components["size"] for v in verdicts} == {3.0, 1.0}  # 3 + 3 + 3 + 1
        assert len({v.components["task"] for v in verdicts}) == 4
    with Judge(f"{file}:batch", workers=4) as judge:
        assert judge.in_order and len({v.components["task"] for v in score(judge, *[("t", "0.1")] * 8)}) == 1


# ---- what the user is told, and settings


def test_silence_is_broken(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "SILENCE", 0.4)
    said: list[str] = []
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(1.2)\ndef f(tasks, texts): time.sleep(1.2); return [1]")
    with Judge(f"{tmp_path}/slow.py:f", say=said.append) as judge:
        assert "has been loading for" in said[0] and "task.start_seconds=60" in said[0]
        said.clear()
        score(judge, ("t", "x"))
        assert said and "1 answer has waited" in said[0]


def test_a_scorer_that_lives_but_is_slow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that overlap, as those of a step, are one wait."""
    monkeypatch.setattr(judge_module, "SLOW", 0.6)
    said: list[str] = []
    (tmp_path / "slow.py").write_text("import time\ndef f(task, text): time.sleep(float(text)); return 1.0\n")
    calls = [[(task("t"), "0.1")] * 5] * 2

    async def step() -> None:
        await asyncio.gather(*(judge.score(call) for call in calls))

    with Judge(f"{tmp_path}/slow.py:f", workers=1, say=said.append) as judge:
        score(judge, *[("t", "0")] * 20)
        assert not said, "a fast one"
        asyncio.run(step())
        assert judge._slow.wait == 0.6 * 2 ** len(said), "each telling needs a wait twice as long as the one before"
    found = re.match(
        r"waiting for the reward: (\d+) of 10 answers are judged after \d s, one every 0\.\d+ s in one p", said[0]
    )
    assert found and 0 < int(found[1]) < 10 and "task.workers" in said[0]


@pytest.mark.parametrize("scorer", ["some", "batch"])
def test_a_wait_for_answers_that_hang_is_no_lack_of_workers(
    file: str, scorer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_module, "SLOW", 0.2)
    said: list[str] = []
    with Judge(f"{file}:{scorer}", seconds=0.6, call_seconds=0.6, workers=1, say=said.append) as judge:
        score(judge, *[("t", "0")])
        hang = ("t", "hang" if scorer == "some" else "9")
        score(judge, *[hang] * 3)
        if scorer == "batch":  # a call of three is one hang
            assert judge._pool.hung == 3
            return
        [first, *_] = [x for x in said if x.startswith("waiting for the reward")]
        assert re.search(r"[12] of 3 answers have hung after \d s in one process, and none is judged", first)
        assert "task.workers" not in first and "endless loop" in first and "raise task.seconds (0.6 now)" in first
    said.clear()
    # Long enough that most of the time goes there, and not into new processes, which a busy machine is slow to start.
    with Judge(f"{file}:{scorer}", seconds=3, workers=1, say=said.append) as judge:
        score(judge, ("t", "0"), hang, hang, ("t", "0"))
        words = [x for x in said if x.startswith("waiting for the reward")]
        assert re.search("[12] of 4 answers are judged after .*, and [12] have hung", words[-1])
        assert "task.workers" not in words[-1]


def test_settings_reach_the_judge(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)\ndef f(task, text): return 1\n")
    settings = {"seconds": 2.0, "start_seconds": 0.5, "workers": 3, "concurrency": 7, "call_seconds": 9.0}
    config = TaskConfig(reward=f"{tmp_path}/slow.py:f", **settings)
    judge = judge_of(load_task("addition", scorer=config.reward, **settings), config)
    assert {k: getattr(judge._pool.limits, k) for k in settings} == settings
    with pytest.raises(ValueError, match=r"not loaded within 0\.5 s.*Raise task\.start_seconds"):
        judge.start()


@pytest.mark.parametrize("setting", ["seconds", "start_seconds", "concurrency", "call_seconds", "workers"])
def test_impossible_settings(setting: str) -> None:
    with pytest.raises(ValueError, match=rf"{setting}=-1 is out of range: use"):
        Judge("m:f", **{setting: -1})


# ---- speed


def test_64_slow_answers_with_16_workers_while_others_go_on(tmp_path: Path) -> None:
    """16 of them at once; the event loop, in which the engine samples, goes on."""
    body = "def f(task, text):\n    with span(): time.sleep(0.2)\n    return float(text)\n"
    (tmp_path / "slow.py").write_text(f"{SPANS}\n{body}")

    async def measured() -> int:
        ticks = 0
        call = asyncio.create_task(judge.score([(task("t"), str(i)) for i in range(64)]))
        while not call.done():
            await asyncio.sleep(0.01)
            ticks += 1
        assert [v.components["task"] for v in call.result()] == [*range(64)]
        return ticks

    def at_once() -> int:
        assert asyncio.run(measured()) > 25
        return peak(noted(f"{tmp_path}/slow.py"))

    with Judge(f"{tmp_path}/slow.py:f", workers=16) as judge:
        assert until(at_once, 16, tries=12) == 16 == len(judge._pool._lanes)
