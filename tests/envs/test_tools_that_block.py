"""A tool that blocks the event loop of all tools, or is still at work when a run is stopped: neither holds it up."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tool_plays import context, played, starts_of

from gruppo.data import Status
from gruppo.envs import with_tools
from gruppo.envs.threads import Threads
from gruppo.envs.with_tools import WithTools
from gruppo.tasks import Task, load_task
from gruppo.tools import waiting
from gruppo.tools.waiting import Blocked, waited

MINE = '''
import asyncio, time
from gruppo.tools import tool

@tool(seconds=0.1)
async def blocks(word: str) -> str:
    """Does not await."""
    time.sleep(float(word))
    return word

@tool(seconds=0.1, retries=3, pause=0.2)
async def slow(word: str) -> str:
    """Awaits, but for too long."""
    await asyncio.sleep(30)

@tool(seconds=0.5)
async def echo(word: str) -> str:
    """Says it."""
    return word

TOOLS = [blocks, slow, echo]
'''


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(waiting, "PULSE", 0.5)
    Path("mine.py").write_text(MINE)
    return "./mine.py:TOOLS"


def test_a_coroutine_that_blocks_costs_its_episode_and_the_next_calls_get_a_loop(tools: str) -> None:
    tasks = load_task("addition", tools=tools, turns=4).train[:2]
    ctx, play = context([["blocks 60"], ["echo hi", "12"]], tools=tools)
    begun = time.monotonic()
    stuck, _ = played(ctx, play, starts_of(ctx, play, tasks))
    assert time.monotonic() - begun < 30
    assert stuck.status == Status.TIMEOUT and not stuck.reward and [c.ok for c in stuck.turns[0].tools] == [False]
    assert "blocks: no answer within 0.1 s" in stuck.error and "`async def` blocks it" in stuck.error
    env = WithTools(tools)
    env.reset(Task("t", "", "", 1, "t"))
    assert env.step("echo again").text == "again"


def test_one_that_awaits_has_all_its_tries(tools: str) -> None:
    """Longer than the limit of one try, in a loop that runs."""
    env = WithTools(tools)
    env.reset(Task("t", "", "", 1, "t"))
    last = env.step("slow x")
    assert last.done and "slow: no answer within 0.1 s." in last.error and last.tools[0].seconds > 1


def test_errors_and_timeouts_of_the_coroutine_are_its_own() -> None:
    async def late() -> None:
        raise TimeoutError("mine")

    async def block() -> str:
        time.sleep(0.6)
        return "done"

    with pytest.raises(TimeoutError, match="mine"):
        waited(late(), 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "PULSE", 60)
        assert waited(block(), 0.1) == "done", "less than a pulse"
        patch.setattr(waiting, "PULSE", 0.05)
        with pytest.raises(Blocked):
            waited(block(), 0.05)


def test_worlds_wait_in_threads_that_python_does_not_join(tools: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def noted(work: Any, seconds: float) -> Any:
        seen.append(threading.current_thread().daemon and threading.current_thread() is not threading.main_thread())
        return waited(work, seconds)

    monkeypatch.setattr(with_tools, "waited", noted)
    ctx, play = context([["echo hi", "12"]], tools=tools)
    played(ctx, play, starts_of(ctx, play, load_task("addition", tools=tools, turns=4).train[:1]))
    assert seen == [True]


def test_python_ends_while_one_waits() -> None:
    code = "import time; from gruppo.envs.threads import Threads; Threads(2, 'x').submit(time.sleep, 600)"
    assert subprocess.run([sys.executable, "-c", code], timeout=250).returncode == 0


def test_threads_are_begun_where_none_is_idle_and_pass_errors_on() -> None:
    threads, together = Threads(3, "x"), threading.Barrier(3, timeout=30)
    for _ in range(4):
        assert len({f.result(30) for f in [threads.submit(together.wait) for _ in range(3)]}) == 3
    assert threads.begun == 3
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 1, 0).result(30)
    free = threads.submit(threading.current_thread).result(30)
    threads.shutdown()
    free.join(30)
    assert not free.is_alive()
