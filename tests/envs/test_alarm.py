"""A world of one's own that hangs costs its episode: it is interrupted, named, and not played again."""

import json
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gruppo.cli import main
from gruppo.envs.alarm import SECONDS, Late, limit_of, within
from gruppo.envs.base import Seen
from gruppo.envs.guard import Guarded, Life
from gruppo.tasks import Task, TaskConfig
from gruppo.tasks.hangs import LEAST, TASKS

TASK = Task("t/1", "", "", 1, "t")


def never() -> None:
    raise AssertionError("nothing hung")


def spin() -> None:
    while True:
        pass


@pytest.mark.parametrize("call", [spin, lambda: time.sleep(90), lambda: threading.Event().wait(90)])
def test_loops_sleeps_and_waits_are_interrupted(call: object) -> None:
    begun = time.monotonic()
    with pytest.raises(Late):
        within(0.1, call, never, "it")  # type: ignore[arg-type]
    assert time.monotonic() - begun < 60  # it would take 90
    time.sleep(0.2)  # it does not ring again


def test_in_time_nothing_is_changed() -> None:
    """Also a bell of somebody else goes on, and so does what it does."""
    rung: list[int] = []
    others = signal.getitimer(signal.ITIMER_REAL)  # of pytest, perhaps
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 1.0)
        assert within(5.0, lambda: 7, never, "it") == within(0.0, lambda: 7, never, "it") == 7
        assert rung or 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1.0
        for _ in range(3000):
            if rung:
                break
            time.sleep(0.01)
        assert rung == [1]
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *others)


def test_in_another_thread_it_is_said() -> None:
    said: list[str] = []
    worker = threading.Thread(target=lambda: within(0.05, lambda: time.sleep(0.2), lambda: said.append("late"), "it"))
    worker.start()
    worker.join()
    assert said == ["late"]


def test_the_limit_is_that_of_the_task_if_it_is_set() -> None:
    assert limit_of(TaskConfig("guess")) == SECONDS and limit_of(TaskConfig("guess", seconds=2.0)) == 2.0


class Sleeps:
    def reset(self, task: Task) -> Seen:
        return Seen("go", state="0")

    def step(self, action: str) -> Seen:
        time.sleep(30)
        return Seen("never")


def test_a_guard_says_the_world_the_task_the_action_and_the_remedy() -> None:
    said: list[str] = []
    env = Guarded(Sleeps(), 0.1, said.append)
    env.reset(TASK)
    seen = env.step("go hall")
    assert seen.done and seen.error == "timeout: no answer to step('go hall') in 0.1 s, in task 't/1'" and env.late
    assert said[0].startswith("warning: Sleeps gave no answer to step('go hall') in 0.1 s, in task 't/1'.")
    assert "task.seconds=0.6" in said[0]


class Wakes(Sleeps):
    asleep, tried = True, 0

    def step(self, action: str) -> Seen:
        Wakes.tried += 1
        return super().step(action) if Wakes.asleep else Seen("up", state="1")


def test_a_world_that_always_hangs_is_not_tried_to_the_end() -> None:
    """In this process its episodes wait for each other. What follows is tried again: it may live."""
    life = Life()

    def draw(tasks: int, episodes: int = 20) -> list[str]:
        life.another_try()
        Wakes.tried = 0
        envs = [Guarded(Wakes(), 600.0, lambda _: None, life) for _ in range(episodes)]
        for i, env in enumerate(envs):
            env.reset(replace(TASK, uid=f"t/{i % tasks}"))
            env.seconds = 0.02 if Wakes.asleep else 600.0  # what answers at once is not late on a busy machine
        return [env.step("go").error for env in envs]

    errors = draw(5)
    assert Wakes.tried == LEAST and "no answer to step" in errors[LEAST - 1] and "counts as dead" in errors[LEAST]
    draw(5)
    assert Wakes.tried == 1
    Wakes.asleep = False
    assert not any(draw(5))
    Wakes.asleep = True
    draw(TASKS - 1, LEAST + 2)
    assert Wakes.tried == LEAST + 2, "tasks that hang with all their episodes are no dead world"


WORLD = """
import time
from dataclasses import replace
from gruppo.envs import Seen

class Sleeps:
    made = 0

    def __init__(self):
        Sleeps.made += 1
        self.number = Sleeps.made

    def reset(self, task):
        self.turn = 0
        time.sleep(30 if task.meta["facts"].get("slow") else 0)
        return Seen("put cup", state="0")

    def step(self, action):
        self.turn += 1
        if self.turn == 2 and self.number % 4 == 2:
            time.sleep(30)
        done = self.turn == 3
        return Seen("go on", state=str(self.turn), rewards={"task": 1.0} if done else {}, done=done)
"""
SMALL = ("model=tiny-agent", "prompts=2", "samples=2", "steps=1", "eval.prompts=1", "threads=1", "show=0")
SMALL += ("save.tensorboard=no", "eval.every=0", "sampling.max_tokens=2", "task.seconds=0.2", "max_failures=0.9")


def test_a_run_leaves_the_episode_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    one_thread: None,
    no_picture: None,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sleeping.py").write_text(WORLD)
    rows = [{"env": "./sleeping.py:Sleeps", "prompt": f"put cup {i}"} for i in range(10)]
    Path("levels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main(["train", *SMALL, "task=./levels.jsonl", "save.name=a"]) == 0
    out = capsys.readouterr().out
    assert out.count("warning: Sleeps gave no answer to step(") == 1
    assert "episodes hung and were left out. First error: timeout: no answer to step(" in out
    row = json.loads(Path("runs/a/metrics.jsonl").read_text().splitlines()[-1])
    assert 0 < row["timed_out"] == row["failed"] < 1
    Path("levels.jsonl").write_text(json.dumps({**rows[0], "slow": True}))
    assert main(["train", *SMALL, "task=./levels.jsonl"]) == 2
    said = capsys.readouterr().err
    assert "line 1" in said and "gave no answer to reset in 0.2 s" in said
