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
from gruppo.tasks.numbering import hash64


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


class Crossings(Crossing):
    """`Crossing` with keys that leave out the goal, and as many tasks as are asked for, which all have the same states:
    groups of few episodes, and exact values from all of them.
    """

    name = "gruppo.envs.claims:Crossings"

    @classmethod
    def drawn(cls, level: int, draw: Draws) -> dict[str, Any]:
        return {**super().drawn(level, draw), "number": draw.below(10**6)}

    def key(self, state: tuple[str, ...]) -> str:
        return self.view(state).partition(" goal")[0]


class Rooms(World[tuple[str, ...]]):
    """Rooms in a row. Whatever one does leads into the next one, and what was done in one of them, the fork, decides in
    the end: up or left wins. What is seen in a room says its number and what was done before; its key is the number.

    So all steps but those at the fork are shared by episodes that win and episodes that lose.
    """

    name = "gruppo.envs.claims:Rooms"
    levels = {1: 6, 2: 12}

    @classmethod
    def drawn(cls, level: int, draw: Draws) -> dict[str, Any]:
        turns = cls.levels[level]
        return {"fork": draw.below(turns), "goal": draw.between(1, 9), "turns": turns}

    @classmethod
    def asked(cls, facts: Facts) -> str:
        return "walk to {} {}".format(facts["fork"] + 1, facts["goal"])

    def begin(self, facts: Facts) -> tuple[str, ...]:
        self.fork, self.rooms = facts["fork"], facts["turns"]
        return ()

    def move(self, state: tuple[str, ...], words: list[str]) -> Moved[tuple[str, ...]]:
        way = words[0] if len(words) == 1 and words[0] in WAYS else ""
        walked = (*state, way)
        if len(walked) < self.rooms:
            return Moved(walked, valid=bool(way))
        won = walked[self.fork] in ("up", "left")
        return Moved(walked, WON if won else LOST, bool(way), True, float(won))

    def view(self, state: tuple[str, ...]) -> str:
        seen = [hash64("rooms", *state, i) % 9 + 1 for i in range(2)]
        return f"at {len(state) + 1} {seen[0]} goal {self.fork + 1} {seen[1]}"

    def key(self, state: tuple[str, ...]) -> str:
        return str(len(state))

    def choices(self, state: tuple[str, ...]) -> Sequence[str]:
        return ORDER

    def best(self, state: tuple[str, ...]) -> str:
        return "up"


class Calls(World[int]):
    """Calls that nobody needs: down ends it, and always wins; anything else is a call that leads elsewhere, and is no
    use. Whoever walks about at random makes three of them, and next to never 40.
    """

    name = "gruppo.envs.claims:Calls"
    levels = {1: 40}

    @classmethod
    def drawn(cls, level: int, draw: Draws) -> dict[str, Any]:
        return {"goal": [draw.between(1, 9), draw.between(1, 9)], "turns": cls.levels[level]}

    @classmethod
    def asked(cls, facts: Facts) -> str:
        return "walk to {} {}".format(*facts["goal"])

    def begin(self, facts: Facts) -> int:
        return 0

    def move(self, state: int, words: list[str]) -> Moved[int]:
        return Moved(state, WON, True, True, 1.0) if words == ["down"] else Moved(state + 1)

    def view(self, state: int) -> str:
        row, column = (hash64("calls", *self.facts["goal"], state, i) % 9 + 1 for i in range(2))
        return "at {} {} goal {} {}".format(row, column, *self.facts["goal"])

    def key(self, state: int) -> str:
        return "here"

    def choices(self, state: int) -> Sequence[str]:
        return ORDER

    def best(self, state: int) -> str:
        return "down"


class Corridor(World[int]):
    """Places in a row, and the goal at its end. In each place one way leads on, in every task the same, and the others
    lead nowhere. Level 3 has as many turns as that of the lake; one walk at random in four arrives.
    """

    name = "gruppo.envs.claims:Corridor"
    levels = {1: (4, 12), 2: (6, 16), 3: (7, 24)}  # places, turns

    @classmethod
    def drawn(cls, level: int, draw: Draws) -> dict[str, Any]:
        places, turns = cls.levels[level]
        return {"places": places, "row": draw.between(1, 9), "number": draw.below(10**6), "turns": turns}

    @classmethod
    def asked(cls, facts: Facts) -> str:
        return "walk to {} {}".format(facts["row"], facts["places"])

    def begin(self, facts: Facts) -> int:
        self.row, self.last = facts["row"], facts["places"]
        return 1

    def move(self, state: int, words: list[str]) -> Moved[int]:
        state += words == [self.best(state)]
        return Moved(state, WON, True, True, 1.0) if state == self.last else Moved(state)

    def view(self, state: int) -> str:
        return f"at {self.row} {state} goal {self.row} {self.last}"

    def key(self, state: int) -> str:
        return str(state)

    def choices(self, state: int) -> Sequence[str]:
        return ORDER

    def best(self, state: int) -> str:
        return ORDER[hash64("corridor", state) % len(ORDER)]


open_lake = of_world(OpenLake, "open_lake")
crossing = of_world(Crossing, "crossing")
crossings = of_world(Crossings, "crossings")
rooms = of_world(Rooms, "rooms")
calls = of_world(Calls, "calls")
corridor = of_world(Corridor, "corridor")


def read_search(turns: int = 3, unpaid: bool = False, **asked: Any) -> TaskSet:
    """Tasks of `ReadSearch` with so many turns; unpaid: in training every outcome is 0, held-out ones are judged."""
    made = of_world(ReadSearch, "read_search").with_options({"turns": turns}).task_set(**asked)

    def without(index: int) -> Task:
        task = made.train[index]
        return replace(task, meta={**task.meta, "facts": {**task.meta["facts"], "unpaid": True}})

    train = Tasks("unpaid", len(made.train), without, lambda: domains_of(made.train))
    return replace(made, train=train) if unpaid else made
