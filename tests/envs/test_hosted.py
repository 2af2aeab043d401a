"""Environments in processes that can be killed, and guarded ones: a failure is the error of its episode."""

import os
import time
from typing import Any

import bad_worlds
import pytest

from gruppo.envs import Called, Seen, make_env
from gruppo.envs.check import LAWS, holds
from gruppo.envs.guard import Guarded
from gruppo.envs.hosted import Hosted
from gruppo.envs.memory import Memory
from gruppo.envs.replay import Replayed
from gruppo.envs.wrappers import Retry, TurnLimit, Window
from gruppo.tasks import Task, load_task

FILE = bad_worlds.__file__
TASK = Task("t", "say stop", "", 1, "t")


def test_a_hosted_world_is_the_same_world() -> None:
    task = load_task("household").train[0]
    here, there = make_env("household"), Hosted("household")
    assert there.can == {"actions", "gold"} and there.seats == ("policy",)  # starts the process
    assert here.reset(task) == there.reset(task)
    while not here.seen.done:
        assert here.gold() == there.gold() and list(here.actions()) == there.actions()
        assert here.step(here.gold()) == there.step(there.gold())
    assert there.look().rewards == {"task": 1.0} and there.starts == 1
    assert there.step("look").rewards == {} and there.gold() == ""
    with pytest.raises(ValueError, match=r"household has no snapshot, and nothing else can be copied.*Replayed"):
        there.snapshot()
    there.close()


def test_calls_of_tools_come_through_the_pipe() -> None:
    task = load_task("calculator").train[0]
    here, there = make_env("calculator"), Hosted("calculator")
    there.reset(task)
    here.reset(task)
    action = here.gold()
    assert here.step(action) == there.step(action) and there.look().tools == (Called("calculator", action),)
    assert there.step("50 * 50").tools == (Called("calculator", "50 * 50", ok=False),)
    there.close()
    broken = Guarded(Tells(("calculator",)))
    broken.reset(TASK)
    assert "Seen.tools is ('calculator',) and no tuple of Called" in broken.step("stop").error


class Tells:
    def __init__(self, tools: Any) -> None:
        self.tools = tools

    def reset(self, task: Task) -> Seen:
        return Seen("begin")

    def step(self, action: str) -> Seen:
        return Seen("on", tools=self.tools)


@pytest.mark.parametrize(
    "wrap", [Guarded, lambda e: TurnLimit(e, 2), lambda e: Retry(e, 3), lambda e: Window(e, 1), Memory]
)
def test_wrappers_pass_calls_of_tools_on_and_make_none(wrap: Any) -> None:
    task, env = load_task("calculator").train[0], wrap(make_env("calculator"))
    env.reset(task)
    assert env.step("1 + 2").tools == (Called("calculator", "1 + 2"),)
    assert [env.step(a).tools for a in ("answer 99", "drop 1", "drop 1")] == [(), (), ()]
    over = TurnLimit(make_env("calculator"), 1)
    over.reset(task)
    assert over.step("1 + 2").tools and not over.step("1 + 2").tools  # after the end


def test_replays_give_a_hosted_world_snapshots() -> None:
    task, env = load_task("lake", level=3).train[0], Replayed(Hosted("lake"))
    env.reset(task)
    env.step("down")
    kept, after = env.snapshot(), env.step("right")
    env.restore(kept)
    assert env.step("right") == after
    env.close()


def test_a_world_that_hangs_loses_its_episode_and_the_next_one_starts_anew() -> None:
    env = Hosted(f"{FILE}:Hangs", seconds=0.3)
    env.reset(TASK)
    begun = time.monotonic()
    seen = env.step("stop")
    assert seen.done and seen.error.startswith("timeout: no answer to step in 0.3 s") and not seen.rewards
    assert time.monotonic() - begun < 50  # it would take 60
    assert env.reset(TASK).text == "begin" and env.starts == 2
    env.close()


def test_a_process_that_ends_loses_its_episode() -> None:
    env = Hosted(f"{FILE}:Exits")
    env.reset(TASK)
    seen = env.step("stop")
    assert seen.error.startswith("ended: ") and "exit code 3" in seen.error
    assert env.step("stop").done and not env.reset(TASK).error
    env.close()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("RaisesOften", "raised: KeyError"),
        ("NaN", "broken: Seen.rewards['task'] is nan"),
        ("NoText", "broken: Seen.text"),
    ],
)
@pytest.mark.parametrize("hosted", [False, True])
def test_what_goes_wrong_is_an_error_and_never_a_reward(name: str, part: str, hosted: bool) -> None:
    env = Hosted(f"{FILE}:{name}") if hosted else Guarded(getattr(bad_worlds, name)())
    env.reset(TASK)
    seen = env.step("stop")
    assert seen.done and seen.error.startswith(part) and not seen.rewards and not seen.outcomes
    if hosted:
        env.close()


def test_a_guarded_world_is_a_world() -> None:
    tasks = load_task("lake").train
    for law in LAWS:
        assert not holds(law, lambda: Guarded(make_env("lake")), [tasks[i] for i in range(2)])


def test_one_process_says_what_all_of_its_world_can() -> None:
    """Wrappers ask for it one after the other, in the thread that samples; resets are waited for beside one another."""
    first, there = Hosted("lake"), Hosted("lake")
    first.start()
    there.same_as(first)
    env = Window(TurnLimit(Retry(Memory(Guarded(there)), 2), 3), 1)
    assert env.can == {"actions", "gold"} and there.starts == 0
    env.reset(load_task("lake").train[0])
    assert there.starts == 1
    first.close()
    there.close()


def test_a_world_that_cannot_start_is_refused() -> None:
    with pytest.raises(ValueError, match="Did you mean 'lake'"):
        Hosted("lak").reset(TASK)
    with pytest.raises(ValueError, match="cannot be made with"):
        Hosted(f"{FILE}:WantsMore").reset(TASK)
    env = Hosted(f"{FILE}:WantsMore", options={"size": 3})
    assert env.reset(TASK).text == "begin"
    env.close()
    with pytest.raises(ValueError, match="positive"):
        Hosted("lake", seconds=0)


def test_a_fork_of_a_world_does_not_answer_the_next_call() -> None:
    there = Hosted(f"{FILE}:Forks")
    for _ in range(2):
        assert there.reset(TASK).text == "begin"
        assert there.step("stop").rewards == {"task": 1.0}
    assert there.reset(TASK).text == "begin" and there.starts == 1
    there.close()


@pytest.mark.parametrize(
    ("name", "said"),
    [("Long", "raised: ValueError: the answer has 65 MiB"), ("Floods", "an answer of more than 64 MiB")],
)
def test_an_answer_without_end_is_an_error(name: str, said: str) -> None:
    """It was read to its end, in minutes, however few seconds a step may take."""
    there = Hosted(f"{FILE}:{name}", seconds=60)
    there.reset(TASK)
    begun = time.process_time()
    seen = there.step("on")
    assert said in seen.error and seen.done and not seen.rewards and len(seen.error) < 200
    assert time.process_time() - begun < 5
    assert there.reset(TASK).text == "begin"
    there.close()


@pytest.mark.skipif(not os.path.exists("/proc/self/oom_score_adj"), reason="Linux only")
def test_where_memory_runs_out_the_world_ends_and_not_the_run() -> None:
    there = Hosted(f"{FILE}:Good")
    there.reset(TASK)
    assert there._channel is not None
    with open(f"/proc/{there._channel._process.pid}/oom_score_adj") as file:
        assert file.read().strip() == "1000"
    there.close()
