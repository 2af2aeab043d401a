"""reasoning-gym in a process of its own: it draws the items of a task, and scores answers.

The hashes of strings are fixed there, because some tasks iterate over sets and would otherwise draw other items in
every process. The library's global random numbers and its prints also stay away from ours.
"""

import dataclasses
import json
import pickle
import random
from base64 import b64encode
from typing import Any

from gruppo.tasks.base import Task
from gruppo.tasks.child import Parent
from gruppo.tasks.extract import tagged, way, whole
from gruppo.tasks.imports import library, nearest, written

POOL = 1024  # the size that a dataset is made with; some prepare that many choices
FEW = 8  # for those that prepare whole items
REMADE = ("acre", "survo", "composite")  # draw their items, or the seeds of their parts, when they are made
EXAMPLES = ("possible_answer", "example_correct_answer", "example_answer")  # for tasks with many right answers


def main() -> None:
    """Serves items until the parent ends. The first message names the task; then (level, key), one item each."""
    parent = Parent()
    try:
        source = Source(**pickle.loads(parent.receive()))
    except ValueError as error:
        return parent.send("refused", str(error))
    parent.send("ready", source.levels)
    while True:
        level, key = pickle.loads(parent.receive())
        try:
            item = pickle.dumps(source.item(level, key))  # JSON would make lists of tuples
        except Exception as error:  # the generator failed for this key; another may work
            parent.send("none", f"{type(error).__name__}: {error}")
        else:
            parent.send("item", b64encode(item).decode())


class Source:
    """A task of reasoning-gym at some levels of its curriculum; level -1 is its default configuration."""

    def __init__(self, name: str, levels: tuple[int, ...] = (), options: dict[str, Any] | None = None) -> None:
        self.gym = library("reasoning_gym", f"task=gym:{name} comes from it", "gym")
        self.factory = library("reasoning_gym.factory", "its tasks are listed there", "gym")
        self.name, self.options = name, options or {}
        if name not in self.factory.DATASETS:
            raise ValueError(
                f"task=gym:{name}: reasoning-gym has no such task.{nearest(name, self.factory.DATASETS)} It has: "
                f"{', '.join(sorted(self.factory.DATASETS))}."
            )
        self.levels = levels or (-1,)
        self.sets = {level: self.made(level, 0) for level in self.levels}

    def made(self, level: int, seed: int, size: int = POOL) -> Any:
        """The dataset of a level; a ValueError says what the library does not accept."""
        cls, config_cls = self.factory.DATASETS[self.name]
        known = [f.name for f in dataclasses.fields(config_cls) if f.name not in ("seed", "size")]
        for option in self.options:
            if option not in known:
                raise ValueError(
                    f"task.options.{option}: gym:{self.name} has no such option.{nearest(option, known)} Options: "
                    f"{', '.join(known)}."
                )
        try:
            config = self._at_level(config_cls, level, {"seed": seed, "size": size, **self._options()})
            return cls(config=config)
        except (AssertionError, TypeError, ValueError, KeyError, AttributeError) as error:
            said = str(error).rstrip(".") or type(error).__name__
            raise ValueError(
                f"gym:{self.name} cannot be made with {written(self.options)} ({said}). Change task.options."
            ) from None

    def _options(self) -> dict[str, Any]:
        if self.name != "composite":
            return self.options
        spec = library("reasoning_gym.composite", "gym:composite mixes tasks", "gym").DatasetSpec
        parts = [spec(**{"weight": 1.0, "config": {}, **part}) for part in self.options.get("datasets", ())]
        return {**self.options, "datasets": parts}

    def _at_level(self, config_cls: Any, level: int, values: dict[str, Any]) -> Any:
        if level < 0:
            return config_cls(**values)
        if not self.factory.has_curriculum(self.name):
            raise ValueError(f"it has no levels; leave out task.level={level}")
        curriculum = self.factory.create_curriculum(self.name)
        last = max((len(a.levels) for a in curriculum.attributes.values()), default=1) - 1
        if level > last:
            raise ValueError(f"task.level={level}, but its levels are 0 to {last}")
        curriculum.set_global_level(level)
        return dataclasses.replace(curriculum.generate_configuration({"size": POOL}), **values)

    def item(self, level: int, key: int) -> dict[str, Any]:
        """The item of a key: question, answer, metadata. A key always gives the same item."""
        import numpy as np

        seed, index = (key >> 10) % 2**31, key % POOL
        random.seed(key)
        np.random.seed(seed)
        if self.name in REMADE:
            return self.made(level, seed, FEW)[index % FEW]
        found = self.sets[level]
        found.seed, found.size = seed, POOL
        return found[index]


def own_answer(entry: dict[str, Any]) -> str:
    """The right answer of an item, or one of them; empty if the library gives none."""
    answer = entry["answer"]
    if answer is None:
        answer = next((entry["metadata"][k] for k in EXAMPLES if entry["metadata"].get(k) is not None), "")
    return answer if isinstance(answer, str) else json.dumps(answer)


class Score:
    """The task's own scorer, applied to the text in `<answer>` tags, or to the whole text without them.

    Scores are not changed: many tasks give a little for an answer of the right form. If the scorer raises for an answer
    but not for the item's own, the answer cannot be read and scores 0. If it raises for both, that is an error.
    """

    def __init__(self, name: str, levels: list[int], options: dict[str, Any], extract: str = "auto") -> None:
        self.source = Source(name, tuple(levels), options)
        self.find = way(extract) if extract != "auto" else _tags_or_whole

    def __call__(self, task: Task, text: str) -> float:
        data = self.source.sets[task.meta["gym_level"]]
        entry = task.meta["entry"]
        found = self.find(text)
        if found is None:
            return 0.0
        try:
            return float(data.score_answer(answer=found, entry=entry))
        except Exception:
            own = own_answer(entry)
            if own:
                data.score_answer(answer=own, entry=entry)  # raises if the scorer is broken
            return 0.0


def _tags_or_whole(text: str) -> str:
    said = whole(text)
    found = tagged(said)
    return said if found is None else found
