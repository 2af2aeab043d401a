"""Worlds, and a scorer, that fail in one call of twenty; which calls is a function of the task and of what was said.

In process: raises, hangs, pays NaN. `Mortal` is for a process of its own, and also ends it. `Judged` is paid by the
scorer `judge`, which raises, hangs and dies, too.
"""

import os
import time
from typing import Any

from lucky import Lucky

from gruppo.envs.base import Seen
from gruppo.tasks import Task, TaskSet
from gruppo.tasks.numbering import hash64

HERE = __file__
SHARE = 20  # one call of so many fails


def fault(kinds: tuple[str, ...], *key: str) -> str:
    """What goes wrong in this call; mostly nothing."""
    drawn = hash64("fault", *key)
    return kinds[drawn // SHARE % len(kinds)] if drawn % SHARE == 0 else ""


def broken(what: str) -> None:
    if what == "raise":
        raise ConnectionError("no answer")
    if what == "hang":
        time.sleep(600)
    if what == "die":
        os._exit(3)


class Shaky(Lucky):
    kinds = ("raise", "nan", "raise", "nan", "hang")

    def reset(self, task: Task) -> Seen:
        self.uid = task.uid
        return super().reset(task)

    def step(self, action: str) -> Seen:
        seen = super().step(action)
        what = fault(self.kinds, self.uid, self.said)
        broken(what)
        return Seen("on", state=seen.state, rewards={"bonus": float("nan")}) if what == "nan" else seen


class Mortal(Shaky):
    kinds = ("die", "raise", "nan", "hang", "die")


class Judged(Lucky):
    """It ends without a reward."""

    def step(self, action: str) -> Seen:
        seen = super().step(action)
        return Seen(seen.text, state=seen.state, done=seen.done)


VERDICTS = ("raise", "die", "raise", "raise", "hang")


def judge(task: Any, text: str) -> float:
    what = fault(VERDICTS, task.uid, text)
    broken(what)
    return float(hash64(text) % 2)


WORLDS = {name: f"{HERE}:{name}" for name in ("Shaky", "Mortal", "Judged")}


def tasks() -> TaskSet:
    rows = [Task(f"{w}/{i}", f"{w[0]}{i}", "", 1, w, meta={"env": WORLDS[w]}) for i in range(8) for w in WORLDS]
    return TaskSet("faulty", rows[:-3], rows[-3:], f"{HERE}:judge", 3, env="+".join(WORLDS.values()))


def expected(uid: str, said: list[str], text: str) -> tuple[str, float]:
    """What goes wrong in an episode of these actions, whose dialogue reads `text`; and what it pays if nothing does."""
    world = {"Shaky": Shaky, "Mortal": Mortal, "Judged": Judged}[uid.partition("/")[0]]
    so_far = ""
    for action in said:
        so_far += f"{action}|"
        if world is not Judged and (what := fault(world.kinds, uid, so_far)):
            return what, 0.0
    if world is Judged:
        return fault(VERDICTS, uid, text), float(hash64(text) % 2)
    return "", float(hash64(so_far) % 2)
