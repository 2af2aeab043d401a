"""Frozen lake: walk over the ice to the goal; a step into a hole loses. On slippery ice some steps go astray.

Where a step slips is a function of the lake and the number of the turn, not of a generator, so the same actions always
lead to the same place.
"""

from collections.abc import Sequence
from typing import Any

from gruppo.envs.world import LOST, WON, Draws, Facts, Moved, World, nothing, spoken, wanted
from gruppo.tasks.numbering import hash64

WAYS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
ORDER = tuple(WAYS)
ASTRAY = {"up": ("left", "right"), "down": ("left", "right"), "left": ("up", "down"), "right": ("up", "down")}

State = tuple[int, int]  # cell, turn


class Lake(World[State]):
    name = "lake"
    about = "frozen lake: walk to the goal past holes, on slippery ice at level 4"
    rules = (
        "You stand on a frozen lake, at a row and a column. Walk to the goal. Falling into a hole ends it. You see the "
        "holes next to you. Actions: up, down, left, right."
    )
    words = spoken("at goal hole walk to up down left right you win lose nothing happens")
    options = ("turns", "slippery")
    # size, turns, share of holes in percent, slippery
    levels = {1: (3, 8, 20, False), 2: (4, 12, 25, False), 3: (6, 24, 25, False), 4: (4, 30, 20, True)}

    @classmethod
    def drawn(cls, level: int, draw: Draws) -> dict[str, Any]:
        size, turns, share, slippery = cls.levels[level]
        start, goal = draw.some(range(size * size), 2)
        holes = [c for c in range(size * size) if c not in (start, goal) and draw.below(100) < share]
        return {
            "size": size,
            "start": start,
            "goal": goal,
            "holes": holes,
            "slippery": slippery,
            "turns": turns,
        }

    @classmethod
    def suits(cls, facts: Facts) -> bool:
        lake = cls()
        state = lake.begin(facts)
        return len(lake.path(state, int(facts["turns"]))) >= min(2, facts["size"] - 1)

    @classmethod
    def asked(cls, facts: Facts) -> str:
        row, column = divmod(facts["goal"], facts["size"])
        return f"walk to {row + 1} {column + 1}"

    def begin(self, facts: Facts) -> State:
        size = wanted(facts, "size", int, "lake")
        cells = range(size * size)
        for name in ("start", "goal"):
            if wanted(facts, name, int, "lake") not in cells:
                raise ValueError(
                    f"lake: {name}={facts[name]} is no cell of {size} x {size}. Use 0 to {len(cells) - 1}."
                )
        self.size, self.goal_cell, self.holes = size, facts["goal"], frozenset(wanted(facts, "holes", list, "lake"))
        self.slips = bool(facts.get("slippery"))
        self.key_of_slips = hash64(size, facts["start"], facts["goal"], *sorted(self.holes))
        self.texts: dict[int, str] = {}
        return facts["start"], 0

    def to(self, cell: int, way: str) -> int:
        """The next cell; at the edge, the same."""
        (row, column), (down, right) = divmod(cell, self.size), WAYS[way]
        row, column = row + down, column + right
        return row * self.size + column if 0 <= row < self.size and 0 <= column < self.size else cell

    def slipped(self, way: str, turn: int) -> str:
        """The way that a step really goes: as meant, or to either side, a third each."""
        slip = hash64("slip", self.key_of_slips, turn) % 3
        return (way, *ASTRAY[way])[slip]

    def move(self, state: State, words: list[str]) -> Moved[State]:
        if len(words) != 1 or words[0] not in WAYS:
            return nothing((state[0], state[1] + 1))
        cell = self.after(state, words[0])
        if cell == self.goal_cell:
            return Moved((cell, state[1] + 1), WON, True, True, 1.0)
        if cell in self.holes:
            return Moved((cell, state[1] + 1), LOST, True, True)
        return Moved((cell, state[1] + 1))

    def after(self, state: State, way: str) -> int:
        return self.to(state[0], self.slipped(way, state[1]) if self.slips else way)

    def view(self, state: State) -> str:
        cell = state[0]
        text = self.texts.get(cell)
        if text is None:
            row, column = divmod(cell, self.size)
            goal = divmod(self.goal_cell, self.size)
            near = [way for way in ORDER if self.to(cell, way) in self.holes]
            parts = ["at", row + 1, column + 1, "goal", goal[0] + 1, goal[1] + 1, *(["hole", *near] if near else [])]
            text = self.texts[cell] = " ".join(map(str, parts))
        return text

    def key(self, state: State) -> str:
        return str(state[0])

    def choices(self, state: State) -> Sequence[str]:
        return ORDER

    def best(self, state: State) -> str:
        path = self.path(state, self.limit - self.turn)
        return path[0] if path else ""

    def path(self, state: State, turns: int) -> list[str]:
        """A shortest way to the goal that knows where the ice will slip; empty if the turns are too few."""
        here: dict[int, list[str]] = {state[0]: []}
        seen = {state[0]}
        for turn in range(state[1], state[1] + turns):
            there: dict[int, list[str]] = {}
            for cell, path in here.items():
                for way in ORDER:
                    to = self.after((cell, turn), way)
                    if to == self.goal_cell:
                        return [*path, way]
                    if to not in self.holes and to not in there and (self.slips or to not in seen):
                        there[to] = [*path, way]
            seen |= set(there)
            here = there
        return []
