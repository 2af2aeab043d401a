"""Tasks in worlds that show differences between methods, for the board of claims.

task=gruppo.envs.claims:open_lake model=tiny-agent
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gruppo.envs.family import of_world
from gruppo.envs.lake import ORDER, WAYS, Lake
from gruppo.envs.search import Search, State
from gruppo.envs.world import LOST, WON, Draws, Facts, Moved, World, nothing
from gruppo.tasks.base import Task, Tasks, TaskSet, domains_of


class OpenLake(Lake):
    """Lakes without holes and with many turns, played in the world `lake`: whoever walks about arrives."""

    levels = {1: (2, 48, 0, False), 2: (3, 48, 0, False)}


class ReadSearch(Search):
    """`search` in which an answer is heard in the last turn only, and wins only if the sentence that says it was read.

    So no episode is shorter than another, and guessing wins nothing. Without an answer `format` is -0.5. With the fact
    `unpaid` nothing wins.
    """

    name = "gruppo.envs.claims:ReadSearch"

    def move(self, state: State, words: list[str]) -> Moved[State]:
        moved = super().move(state, words)
        if not moved.over:
            return moved
        if self.turn < self.limit:
            return nothing(state)
        relation, who = self.hops[-1]
        read = f"the {relation} of {who} is {self.chain[-1]}" in {self.corpus.texts[i] for i in state.read}
        return moved if read and not self.facts.get("unpaid") else Moved(state, LOST, True, True)

    def paid(self, moved: Moved[State]) -> tuple[Mapping[str, float], Mapping[str, float]]:
        rewards, outcomes = super().paid(moved)
        return {**rewards, "format": 0.0 if moved.over else -0.5}, outcomes


class Crossing(World[tuple[str, ...]]):
    """Three steps: to the north or to the south, from there to the crossing, and on. The crossing looks the same, and
    has the same key, from wherever one came. From the north all ways on but one win, from the south only that one: one
    state with two histories.
    """

    name = "gruppo.envs.claims:Crossing"
    levels = {1: 3}

    @classmethod
    def drawn(cls, level: int, draw: Draws) -> dict[str, Any]:
        return {"goal": [draw.between(1, 9), draw.between(1, 9)], "turns": cls.levels[level]}

    @classmethod
    def asked(cls, facts: Facts) -> str:
        return "walk to {} {}".format(*facts["goal"])

    def begin(self, facts: Facts) -> tuple[str, ...]:
        return ()

    def move(self, state: tuple[str, ...], words: list[str]) -> Moved[tuple[str, ...]]:
        if len(words) != 1 or words[0] not in WAYS:
            return nothing(state)
        if len(state) < 2:
            return Moved((*state, words[0]))
        won = (words[0] == "up") != north(state)
        return Moved(state, WON if won else LOST, True, True, float(won))

    def view(self, state: tuple[str, ...]) -> str:
        row = 2 if len(state) != 1 else 1 if north(state) else 3
        return "at {} {} goal {} {}".format(row, len(state) + 1, *self.facts["goal"])

    def key(self, state: tuple[str, ...]) -> str:
        return self.view(state)

    def choices(self, state: tuple[str, ...]) -> Sequence[str]:
        return ORDER

    def best(self, state: tuple[str, ...]) -> str:
        return "down" if north(state) else "up"


def north(state: tuple[str, ...]) -> bool:
    """Whether the first step led to the north."""
    return state[:1] in (("up",), ("left",))


open_lake = of_world(OpenLake, "open_lake")
crossing = of_world(Crossing, "crossing")


def read_search(turns: int = 3, unpaid: bool = False, **asked: Any) -> TaskSet:
    """Tasks of `ReadSearch` with so many turns; unpaid: in training every outcome is 0, held-out ones are judged."""
    made = of_world(ReadSearch, "read_search").with_options({"turns": turns}).task_set(**asked)

    def without(index: int) -> Task:
        task = made.train[index]
        return replace(task, meta={**task.meta, "facts": {**task.meta["facts"], "unpaid": True}})

    train = Tasks("unpaid", len(made.train), without, lambda: domains_of(made.train))
    return replace(made, train=train) if unpaid else made
