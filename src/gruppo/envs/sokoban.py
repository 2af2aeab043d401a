"""Sokoban: push every box onto a goal. Boxes cannot be pulled, so a push into a corner cannot be undone.

A level is a drawing, as usual: `#` wall, `@` you, `$` box, `.` goal, `*` box on a goal, `+` you on a goal.
"""

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from gruppo.envs.lake import ORDER, WAYS
from gruppo.envs.world import WON, Draws, Facts, Moved, World, nothing, spoken, wanted

Cell = tuple[int, int]
State = tuple[Cell, tuple[Cell, ...]]  # you; the boxes, sorted
SEARCHED = 20_000  # states that the search for a solution looks at


class Map:
    """What does not move: walls, goals, and the cells from which a box can never reach a goal."""

    def __init__(self, board: tuple[str, ...]) -> None:
        cells = {(r, c): mark for r, row in enumerate(board) for c, mark in enumerate(row)}
        unknown = set(cells.values()) - set("#@$.*+ ")
        if unknown:
            raise ValueError(f"sokoban: the board has {min(unknown)!r}. Use # @ $ . * + and spaces.")
        self.floor = frozenset(at for at, mark in cells.items() if mark != "#")
        self.goals = frozenset(at for at, mark in cells.items() if mark in ".*+")
        self.boxes = tuple(sorted(at for at, mark in cells.items() if mark in "$*"))
        you = [at for at, mark in cells.items() if mark in "@+"]
        if len(you) != 1 or not self.boxes or len(self.boxes) > len(self.goals):
            raise ValueError(
                f"sokoban: the board has {len(you)} @, {len(self.boxes)} boxes and {len(self.goals)} goals. It needs "
                "one @, at least one $, and a goal for every box."
            )
        self.you = you[0]
        self.alive = self._alive()

    def _alive(self) -> frozenset[Cell]:
        """Cells from which a box alone can be pushed to a goal: pull it away from each goal."""
        found, queue = set(self.goals), deque(self.goals)
        while queue:
            row, column = queue.popleft()
            for down, right in WAYS.values():
                box, you = (row - down, column - right), (row - 2 * down, column - 2 * right)
                if box in self.floor and you in self.floor and box not in found:
                    found.add(box)
                    queue.append(box)
        return frozenset(found)

    def after(self, state: State, way: str) -> State:
        """The state after a step; the same one if a wall or a box is in the way."""
        (row, column), boxes = state
        down, right = WAYS[way]
        to = (row + down, column + right)
        if to not in self.floor:
            return state
        if to not in boxes:
            return to, boxes
        beyond = (to[0] + down, to[1] + right)
        if beyond not in self.floor or beyond in boxes:
            return state
        return to, tuple(sorted(beyond if box == to else box for box in boxes))

    def won(self, boxes: tuple[Cell, ...]) -> bool:
        return self.goals.issuperset(boxes)


@lru_cache(maxsize=64)
def drawing(board: tuple[str, ...]) -> Map:
    return Map(board)


@lru_cache(maxsize=512)
def solution(board: tuple[str, ...], start: State) -> tuple[str, ...] | None:
    """A shortest solution, or None; the search gives up after `SEARCHED` states."""
    here = drawing(board)
    came: dict[State, tuple[State, str] | None] = {start: None}
    queue = deque([start])
    while queue and len(came) < SEARCHED:
        state = queue.popleft()
        for way in ORDER:
            to = here.after(state, way)
            if to in came or (to[1] != state[1] and not here.alive.issuperset(to[1])):
                continue
            came[to] = (state, way)
            if here.won(to[1]):
                return _back(came, to)
            queue.append(to)
    return None


def _back(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    path: list[str] = []
    while (step := came[state]) is not None:
        state, way = step
        path.append(way)
    return tuple(reversed(path))


class Sokoban(World[State]):
    name = "sokoban"
    about = "push boxes onto goals; a box in a corner is lost"
    rules = (
        "You are in a store room, at a row and a column. Push every box onto a goal; you cannot pull. You see the "
        "boxes and the walls next to you. Actions: up, down, left, right."
    )
    words = spoken("at box boxes wall push to and up down left right you win nothing happens")
    # inner size, boxes, inner walls, turns
    levels = {1: (4, 1, 0, 16), 2: (5, 1, 3, 24), 3: (5, 2, 2, 40), 4: (6, 2, 5, 50)}

    @classmethod
    def drawn(cls, level: int, draw: Draws) -> dict[str, Any]:
        size, boxes, walls, turns = cls.levels[level]
        cells = draw.some([(r, c) for r in range(1, size + 1) for c in range(1, size + 1)], 2 * boxes + walls + 1)
        marks = dict(zip(cells, "@" + "$" * boxes + "." * boxes + "#" * walls, strict=True))
        edge = "#" * (size + 2)
        rows = ["".join(marks.get((r, c), " ") for c in range(1, size + 1)) for r in range(1, size + 1)]
        return {"board": [edge, *(f"#{row}#" for row in rows), edge], "turns": turns}

    @classmethod
    def suits(cls, facts: Facts) -> bool:
        board = tuple(facts["board"])
        here = drawing(board)
        if not here.alive.issuperset(here.boxes):
            return False
        found = solution(board, (here.you, here.boxes))
        return found is not None and 2 <= len(found) <= 0.7 * facts["turns"]

    @classmethod
    def asked(cls, facts: Facts) -> str:
        goals = sorted(drawing(tuple(facts["board"])).goals)
        places = " and ".join(f"{r} {c}" for r, c in goals)
        return f"push {'box' if len(goals) == 1 else 'boxes'} to {places}"

    def begin(self, facts: Facts) -> State:
        self.board = tuple(map(str, wanted(facts, "board", list, "sokoban")))
        self.map = drawing(self.board)
        return self.map.you, self.map.boxes

    def move(self, state: State, words: list[str]) -> Moved[State]:
        if len(words) != 1 or words[0] not in WAYS:
            return nothing(state)
        to = self.map.after(state, words[0])
        if to[1] != state[1] and self.map.won(to[1]):
            return Moved(to, WON, True, True, 1.0)
        return Moved(to)

    def view(self, state: State) -> str:
        (row, column), boxes = state
        walls = " ".join(w for w, (down, right) in WAYS.items() if (row + down, column + right) not in self.map.floor)
        where = " ".join(f"{r} {c}" for r, c in boxes)
        return f"at {row} {column} box {where}" + (f" wall {walls}" if walls else "")

    def key(self, state: State) -> str:
        (row, column), boxes = state
        return f"{row},{column};" + ";".join([f"{r},{c}" for r, c in boxes])

    def choices(self, state: State) -> Sequence[str]:
        return ORDER

    def best(self, state: State) -> str:
        path = solution(self.board, state)
        return path[0] if path else ""
