"""reasoning-gym in a process of its own: the items of a task, one by one, and its scorer.

Items come from a process whose string hashes are fixed: some tasks walk through sets, and would give other items in
every process. It also keeps the library's use of global random numbers, and its prints, away from ours.
"""

import dataclasses
import json
import pickle
import random
from typing import Any

from gruppo.tasks.base import Task
from gruppo.tasks.extract import tagged, way, whole
from gruppo.tasks.imports import library, nearest

POOL = 1024  # the size that a task is told; some prepare that many choices
FEW = 8  # for those that prepare whole items
REMADE = ("acre", "survo", "composite")  # draw their items, or the seeds of parts, when they are made
EXAMPLES = ("possible_answer", "example_correct_answer", "example_answer")  # where a task has many right answers


def main() -> None:
    """Serves items until stdin ends. The first message says which task; then (level, key), one item each."""
    from gruppo.tasks.worker import take_pipes

    requests, replies = take_pipes()

    def send(message: Any) -> None:
        data = memoryview(pickle.dumps(message))
        while data:
            data = data[replies.write(data) :]

    try:
        source = Source(**pickle.load(requests))
        send(("ready", source.levels))
    except ValueError as error:
        return send(("refused", str(error)))
    while True:
        try:
            level, key = pickle.load(requests)
        except EOFError:
            return
        try:
            send(("item", source.item(level, key)))
        except Exception as error:  # the generator gave up on this key; another may do
            send(("none", f"{type(error).__name__}: {error}"))


class Source:
    """A task of reasoning-gym at some levels of its curriculum; level -1 is its default configuration."""

    def __init__(self, name: str, levels: tuple[int, ...] = (), options: dict[str, Any] | None = None) -> None:
        self.gym = library("reasoning_gym", f"task=gym:{name} comes from it", "gym")
        self.factory = library("reasoning_gym.factory", "its tasks are listed there", "gym")
        self.name, self.options = name, options or {}
        if name not in self.factory.DATASETS:
            raise ValueError(
                f"task=gym:{name}: reasoning-gym has no such task, so there is nothing to train on."
                f"{nearest(name, self.factory.DATASETS)} It has {len(self.factory.DATASETS)}: "
                f"{', '.join(sorted(self.factory.DATASETS))}."
            )
        self.levels = levels or (-1,)
        self.sets = {level: self.made(level, 0) for level in self.levels}

    def made(self, level: int, seed: int, size: int = POOL) -> Any:
        """The dataset of a level. What the library does not take is answered with a sentence."""
        cls, config_cls = self.factory.DATASETS[self.name]
        known = [f.name for f in dataclasses.fields(config_cls) if f.name not in ("seed", "size")]
        for option in self.options:
            if option not in known:
                raise ValueError(
                    f"task.options.{option}: gym:{self.name} has no such option, so it would have no effect."
                    f"{nearest(option, known)} Options: {', '.join(known)}."
                )
        try:
            config = self._at_level(config_cls, level, {"seed": seed, "size": size, **self._options()})
            return cls(config=config)
        except (AssertionError, TypeError, ValueError, KeyError, AttributeError) as error:
            given = ", ".join(f"{k}={v!r}" for k, v in self.options.items()) or "no options"
            said = str(error).rstrip(".") or type(error).__name__
            raise ValueError(
                f"gym:{self.name} cannot be made with {given} ({said}), so there is nothing to train on. Change "
                "task.options."
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
            raise ValueError(f"it has no levels, so task.level={level} has no meaning; leave it out")
        curriculum = self.factory.create_curriculum(self.name)
        last = max((len(a.levels) for a in curriculum.attributes.values()), default=1) - 1
        if level > last:
            raise ValueError(f"task.level={level}, and its levels are 0 to {last}")
        curriculum.set_global_level(level)
        return dataclasses.replace(curriculum.generate_configuration({"size": POOL}), **values)

    def item(self, level: int, key: int) -> dict[str, Any]:
        """The item of a key: question, answer, metadata. The same key gives the same item, always."""
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
    """The right answer of an item, or one of them; empty where the library names none."""
    answer = entry["answer"]
    if answer is None:
        answer = next((entry["metadata"][k] for k in EXAMPLES if entry["metadata"].get(k) is not None), "")
    return answer if isinstance(answer, str) else json.dumps(answer)


class Score:
    """The scorer that the task brings, on what stands between `<answer>` tags, or on the whole text without them.

    Its scores stay as they are: many tasks give a little for an answer of the right form. Where it breaks on an answer
    but takes the item's own, the answer cannot be read, and is wrong: 0. Where it breaks on both, that is an error.
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
                data.score_answer(answer=own, entry=entry)  # raises: the scorer is broken, not the answer
            return 0.0


def _tags_or_whole(text: str) -> str:
    said = whole(text)
    found = tagged(said)
    return said if found is None else found


if __name__ == "__main__":
    main()
