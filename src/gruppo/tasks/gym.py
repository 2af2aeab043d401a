"""reasoning-gym (Stojanovski et al. 2025, arXiv:2505.24760): `task=gym:countdown`, 106 generated tasks with scorers.

An item is drawn under a random key of (seed, split, index), so it is the same in every process, and a run can be
resumed exactly. One question in five is held out, by a hash of the question, for every user, seed, size and option. A
draw that belongs to the other split is repeated under another key, so nothing is generated in advance.
"""

import json
import os
import pickle
import time
from base64 import b64decode
from functools import lru_cache
from threading import Lock
from typing import Any

from gruppo.tasks.base import HELD_OUT, Domains, Scorer, Task, Tasks, TaskSet, parse_levels
from gruppo.tasks.build import answer_tokens, scorer_of, text_tokens
from gruppo.tasks.channel import Channel, Died, Hung
from gruppo.tasks.gym_worker import own_answer
from gruppo.tasks.numbering import hash64
from gruppo.tasks.settings import TaskConfig, plain, refuse_unused

TRIES = 400  # draws for one item
KEPT = 20_000  # items in memory, so that a second epoch costs nothing
START_SECONDS, ITEM_SECONDS = 120.0, 60.0


def load(settings: TaskConfig, held_out_size: int) -> TaskSet:
    refuse_unused(settings, ("level", "seed", "train_size", "options"))
    name, options = settings.name.removeprefix("gym:"), plain(settings.options)
    for option, ours in (("seed", "task.seed"), ("size", "task.train_size")):
        if option in options:
            raise ValueError(f"task.options.{option} would have no effect, because gruppo draws the items. Use {ours}.")
    levels = parse_levels(settings.name, settings.level, tuple(range(100))) if settings.level else ()
    items = Items(name, levels, options)
    train = split(items, "train", settings.seed, settings.train_size or 20_000)
    begun = time.perf_counter()
    longest = max(len(task.answer) for task in train[:8])
    seconds = (time.perf_counter() - begun) / 8
    tokens = answer_tokens(2 * longest)
    scorer = Scorer(
        "gruppo.tasks.gym_worker:Score",
        {"name": name, "levels": list(items.levels), "options": options, **plain(settings.args)},
    )
    notes = [f"gym:{name}: {len(train)} tasks, one question in {HELD_OUT} held out"]
    if seconds >= 0.05:
        notes.append(
            f"gym:{name}: an item takes {seconds:.2f} s to generate, a held-out one {HELD_OUT} times that, so "
            "evaluation takes long. Use fewer held-out items, for example eval.prompts=50."
        )
    return TaskSet(
        name=name,
        train=train,
        held_out=split(items, "held_out", 0, held_out_size),
        scorer=scorer_of(settings.reward, settings) if settings.reward else scorer,
        max_tokens=tokens,
        levels=tuple(map(_shown, items.levels)),
        notes=tuple(notes),
        text_tokens=text_tokens(longest),
    )


def split(items: "Items", name: str, seed: int, size: int) -> Tasks:
    """One split: the levels take turns. Items are drawn when they are needed, and kept."""
    levels = items.levels

    @lru_cache(maxsize=KEPT)
    def draw(index: int) -> Task:
        level, said = levels[index % len(levels)], ""
        for attempt in range(TRIES):
            entry = items.item(level, hash64("gym", items.name, level, name, seed, index, attempt))
            if isinstance(entry, str):
                said = f" The library said: {entry}."
            elif (hash64("split", str(entry["question"])) % HELD_OUT == 0) == (name == "held_out"):
                return _task(items.name, level, entry)
        raise ValueError(
            f"gym:{items.name} gave no {name} item in {TRIES} draws, so it cannot be used like this.{said} "
            "It may have too few different questions: change task.options or task.level."
        )

    def domains() -> Domains:
        return {f"gym/{items.name}/{_shown(n)}": range(i, size, len(levels)) for i, n in enumerate(levels)}

    return Tasks(f"gym:{items.name}.{name}", size, draw, domains)


def _shown(level: int) -> int:
    """The default configuration, -1, has no level of its own and is shown as 1."""
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
        # With random hashes of strings, tasks that iterate over sets would draw other items in every process.
        self._channel = Channel("gruppo.tasks.gym_worker", {**os.environ, "PYTHONHASHSEED": "0"})
        kind, content = self._ask({"name": name, "levels": levels, "options": options}, START_SECONDS)
        if kind == "refused":
            self._channel.close()
            raise ValueError(content)
        self.levels: tuple[int, ...] = tuple(content)

    def item(self, level: int, key: int) -> dict[str, Any] | str:
        """The item of a key, or why the library gave none."""
        with self._lock:
            kind, content = self._ask((level, key), ITEM_SECONDS)
        return pickle.loads(b64decode(content)) if kind == "item" else content

    def _ask(self, message: Any, seconds: float) -> tuple[str, Any]:
        try:
            self._channel.send(pickle.dumps(message))
            return self._channel.read(seconds)
        except Hung:
            self._channel.close()
            raise ValueError(
                f"gym:{self.name}: drawing an item took longer than {seconds:g} s, so it was stopped. Choose easier "
                "task.options or another task.level."
            ) from None
        except Died as error:
            self._channel.close()
            raise ValueError(
                f"gym:{self.name}: the process that draws its items has ended ({error}). stderr may say why."
            ) from None
