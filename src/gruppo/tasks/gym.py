"""reasoning-gym (Stojanovski et al. 2025, arXiv:2505.24760): `task=gym:countdown`, 106 generated tasks with scorers.

An item is drawn under a key of (seed, split, place), so it is the same in every process and the run can go on exactly.
One question in five is held out, by a hash of the question: for everyone, whatever the seed, the size or the options.
A draw that falls on the wrong side is drawn again, so nothing has to be generated before it is asked for.
"""

import json
import os
import pickle
import subprocess
import sys
import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, overload

from gruppo.tasks.base import HELD_OUT, Scorer, Task, TaskSet, parse_levels
from gruppo.tasks.build import LEAST, MOST, UNKNOWN, scorer_of
from gruppo.tasks.gym_worker import own_answer
from gruppo.tasks.numbering import hash64
from gruppo.tasks.settings import TaskConfig, plain, refuse_unused

SCORER = "gruppo.tasks.gym_worker:Score"
TRIES = 400  # draws for one place; half of a task's questions would have to be held out to run out of them
KEPT = 20_000  # items kept, so that a second epoch costs nothing
START_SECONDS, ITEM_SECONDS = 120.0, 60.0

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from gruppo.tasks.gym_worker import main; main()"


def load(settings: TaskConfig, held_out_size: int) -> TaskSet:
    refuse_unused(settings, ("level", "seed", "train_size", "options"))
    name, options = settings.name.removeprefix("gym:"), plain(settings.options)
    for ours in ("seed", "size"):
        if ours in options:
            other = {"seed": "task.seed", "size": "task.train_size"}[ours]
            raise ValueError(f"task.options.{ours}: gruppo draws the items, so it would have no effect. Use {other}.")
    levels = parse_levels(settings.name, settings.level, tuple(range(100))) if settings.level else ()
    items = Items(name, levels, options)
    train = Split(items, "train", settings.seed, settings.train_size or 20_000)
    held = Split(items, "held_out", 0, held_out_size)
    begun = time.perf_counter()
    longest = max(len(train[i].answer) for i in range(min(8, len(train))))
    seconds = (time.perf_counter() - begun) / 8
    tokens = min(MOST, max(LEAST, 2 * longest)) if longest else UNKNOWN
    scorer = Scorer(SCORER, {"name": name, "levels": list(items.levels), "options": options, **plain(settings.args)})
    return TaskSet(
        name=name,
        train=train,
        held_out=held,
        scorer=scorer_of(settings.reward, settings) if settings.reward else scorer,
        max_tokens=tokens,
        levels=tuple(map(_shown, items.levels)),
        notes=_notes(settings.name, train, tokens, seconds),
    )


def _notes(name: str, train: "Split", tokens: int, seconds: float) -> tuple[str, ...]:
    made = f"{name}: {len(train)} tasks, one question in {HELD_OUT} held out, at most {tokens} tokens an answer"
    if seconds < 0.05:
        return (made,)
    return (
        made,
        f"{name}: an item takes {seconds:.2f} s to generate, and a held-out one {HELD_OUT} times that: with "
        "eval.prompts=500 the first evaluation waits for it. Use fewer, for example eval.prompts=50.",
    )


@dataclass(frozen=True)
class Split(Sequence[Task]):
    """One split: levels take turns. Items are drawn when they are asked for, and kept."""

    items: "Items"
    name: str
    seed: int
    size: int
    kept: "OrderedDict[int, Task]" = field(default_factory=OrderedDict, repr=False, compare=False)

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = index + self.size if index < 0 else index
        if not 0 <= i < self.size:
            raise IndexError(f"gym:{self.items.name}.{self.name}[{index}]: there are {self.size} tasks.")
        if i not in self.kept:
            self.kept[i] = self._drawn(i)
            if len(self.kept) > KEPT:
                self.kept.popitem(last=False)
        return self.kept[i]

    @property
    def domains(self) -> dict[str, Sequence[int]]:
        """{domain: places of its tasks}, without drawing them."""
        levels = self.items.levels
        return {f"gym/{self.items.name}/{_shown(n)}": range(i, self.size, len(levels)) for i, n in enumerate(levels)}

    def _drawn(self, place: int) -> Task:
        level, said = self.items.levels[place % len(self.items.levels)], ""
        for attempt in range(TRIES):
            key = hash64("gym", self.items.name, level, self.name, self.seed, place, attempt)
            entry = self.items.item(level, key)
            if isinstance(entry, str):
                said = f" The library said: {entry}."
            elif (hash64("split", str(entry["question"])) % HELD_OUT == 0) == (self.name == "held_out"):
                return _task(self.items.name, level, entry)
        raise ValueError(
            f"gym:{self.items.name} gave no {self.name} item in {TRIES} draws, so it cannot be used like this.{said} "
            "It may have too few different questions: change task.options or task.level."
        )


def _shown(level: int) -> int:
    """The default configuration is nobody's level, and counts as 1."""
    return 1 if level < 0 else level


def _task(name: str, level: int, entry: dict[str, Any]) -> Task:
    answer = own_answer(entry)
    content = json.dumps([entry["question"], answer])
    return Task(
        uid=f"gym/{name}/{hash64('uid', content):016x}",
        prompt=str(entry["question"]),
        answer=answer,
        level=_shown(level),
        source=f"gym/{name}",
        solution=answer,
        meta={"entry": entry, "gym_level": level},
    )


class Items:
    """The process that draws items. It starts at once, and ends with this object."""

    def __init__(self, name: str, levels: tuple[int, ...], options: dict[str, Any]) -> None:
        self.name, self._lock = name, Lock()
        # Without fixed hashes of strings, tasks that walk through sets give other items in every process.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-c", _BOOT, json.dumps([os.path.abspath(p) for p in sys.path])]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        self._replies: SimpleQueue[Any] = SimpleQueue()
        self.close = weakref.finalize(self, _stop, self._process, os.getpid())
        Thread(target=_collect, args=(self._process.stdout, self._replies), daemon=True).start()
        kind, content = self._ask({"name": name, "levels": levels, "options": options}, START_SECONDS)
        if kind == "refused":
            self.close()
            raise ValueError(content)
        self.levels: tuple[int, ...] = content

    def item(self, level: int, key: int) -> dict[str, Any] | str:
        """The item of a key, or why the library gave none."""
        with self._lock:
            return self._ask((level, key), ITEM_SECONDS)[1]

    def _ask(self, message: Any, seconds: float) -> tuple[str, Any]:
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(pickle.dumps(message))
            self._process.stdin.flush()
            reply = self._replies.get(timeout=seconds)
        except (OSError, ValueError):
            reply = None
        except Empty:
            self.close()
            raise ValueError(
                f"gym:{self.name}: drawing an item took longer than {seconds:g} s, so it was given up. Choose easier "
                "task.options or another task.level."
            ) from None
        if reply is None:
            self.close()
            raise ValueError(
                f"gym:{self.name}: the process that draws its items has ended, so there are none. stderr may say why."
            )
        return reply


def _collect(pipe: Any, replies: "SimpleQueue[Any]") -> None:
    try:
        while True:
            replies.put(pickle.load(pipe))
    except (EOFError, OSError, ValueError, pickle.UnpicklingError):
        replies.put(None)


def _stop(process: "subprocess.Popen[bytes]", owner: int) -> None:
    if os.getpid() == owner and process.poll() is None:
        process.kill()
        process.wait()
