"""A world that never comes back to Python: it is said, and with task.hosted it costs its episode and not the run."""

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import bad_worlds
import pytest
from test_converse import context, engine_of, played, policy, starts_of

from gruppo.data import Status
from gruppo.envs import make_env
from gruppo.envs.hosted import Hosted
from gruppo.envs.watch import Watch
from gruppo.policies import CharTokenizer, TinyTransformer
from gruppo.stages.converse import Converse, play_of
from gruppo.tasks import TaskConfig, load_task
from gruppo.tasks.imports import load_object
from gruppo.tasks.load import load

__all__ = ["policy"]
FILE = bad_worlds.__file__

WORLD = """
from collections import deque
from itertools import repeat
from gruppo.envs import Seen

class Locks:
    rules = "Say anything."

    def reset(self, task):
        if task.meta["facts"].get("at") == "reset":
            deque(repeat(0), maxlen=0)  # without end, in C, with Python's lock: no signal and no thread gets through
        self.locks = task.meta["facts"].get("at") == "step"
        return Seen("put cup", state="0")

    def step(self, action):
        if self.locks:
            deque(repeat(0), maxlen=0)
        return Seen("done", state="1", rewards={"task": 1.0}, done=True)
"""


def levels(folder: Path, at: tuple[str, ...]) -> TaskConfig:
    """A file of levels that lock in these calls."""
    (folder / "locking.py").write_text(WORLD)
    rows = [{"env": f"{folder}/locking.py:Locks", "prompt": f"put cup {i}", "at": call} for i, call in enumerate(at)]
    (folder / "levels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return TaskConfig(str(folder / "levels.jsonl"), hosted=True, seconds=1.0, held_out=0.25)


def test_with_processes_it_costs_its_episode(tmp_path: Path, policy: TinyTransformer) -> None:
    config = levels(tmp_path, ("step", "", "", "step"))
    tasks = load(config)
    play = play_of(tasks, config, CharTokenizer())
    assert isinstance(play, Converse)
    ctx, asked = context(engine_of(policy)), [*tasks.train, *tasks.held_out]
    for task, e in zip(asked, played(ctx, play, starts_of(ctx, play, asked)), strict=True):
        if task.meta["facts"]["at"]:
            assert e.status == Status.TIMEOUT and e.reward == {} and "so its process was killed" in e.error
        else:
            assert e.status == Status.OK and e.reward == {"task": 1.0}
    play.close()


def test_a_level_that_locks_at_its_beginning_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 2: .*Locks gave no answer to reset in 1 s"):
        load(levels(tmp_path, ("", "reset")))


def test_a_hosted_world_keeps_its_rules(tmp_path: Path) -> None:
    (tmp_path / "locking.py").write_text(WORLD)
    path = f"{tmp_path}/locking.py:Locks"
    env = make_env(path, hosted=True)
    assert isinstance(env, Hosted) and env.rules == load_object(path).rules
    env.close()
    assert not isinstance(make_env("lake", hosted=True), Hosted)  # built in: it cannot hang


def test_the_setting_reaches_the_player_and_is_refused_where_it_has_no_effect() -> None:
    lake, own = load_task("lake"), f"{FILE}:Good"
    play = play_of(type(lake)("own", lake.train, lake.held_out, "", 4, env=own), TaskConfig(own, hosted=True), None)
    assert isinstance(play, Converse) and play.hosted
    with pytest.raises(ValueError, match=r"task.hosted=yes: lake is built in.*Leave it out"):
        play_of(lake, TaskConfig("lake", hosted=True), None)
    with pytest.raises(ValueError, match=r"task.hosted=True: task=addition is not played in an environment"):
        play_of(load_task("addition"), TaskConfig("addition", hosted=True), None)


def test_the_watch_speaks_only_of_a_call_that_has_not_come_back() -> None:
    out, to = os.pipe()
    watch = Watch(every=0.02, to=to)
    os.close(to)
    for i in range(3):
        watch.begin(60.0, f"early {i}")
        watch.end()
    watch.begin(0.0, "late")
    assert os.read(out, 100) == b"late"
    assert not select.select([out], [], [], 0.2)[0]  # once
    watch.begin(0.0, "again")
    assert os.read(out, 100) == b"again"
    watch.close()
    assert os.read(out, 100) == b""  # its process has ended
    os.close(out)


def test_a_world_that_holds_python_is_named_with_the_remedy(tmp_path: Path) -> None:
    """In a process of its own, since nothing else could end it."""
    (tmp_path / "locking.py").write_text(WORLD)
    code = """
import sys
from gruppo.envs import alarm, guard, make_env
from gruppo.tasks import Task
alarm.GRACE = 0.1
world = guard.Guarded(make_env("./locking.py:Locks"), 0.1)
world.reset(Task("t/1", "", "", 1, "t", meta={"facts": {"at": "step"}}))
world.step("go hall")
"""
    path = os.pathsep.join(p for p in sys.path if p)
    begun = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        said = process.stderr.readline() + process.stderr.readline()
        assert process.poll() is None and time.monotonic() - begun < 250
        process.kill()
    assert b"step('go hall') of Locks, in task 't/1', has not come back after 0.2 s" in said
    assert b"task.hosted=yes" in said and f"kill -9 {process.pid}".encode() in said
