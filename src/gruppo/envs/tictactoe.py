"""Tic-tac-toe for two seats. A free cell shows its number, 1 to 9, and that number is the action."""

from collections.abc import Sequence
from functools import cache
from itertools import combinations
from typing import Any

from gruppo.envs.base import Seen
from gruppo.envs.players import from_words, mixed, picked
from gruppo.envs.world import LOST, Facts, Game, Moved, nothing, number, spoken, wanted

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
SEATS = ("cross", "nought")
MARKS = "xo"


def winner(board: str) -> str:
    for a, b, c in LINES:
        if board[a] != "." and board[a] == board[b] == board[c]:
            return board[a]
    return ""


def to_move(board: str) -> str:
    return "x" if board.count("x") == board.count("o") else "o"


def put(board: str, at: int) -> str:
    return board[:at] + to_move(board) + board[at + 1 :]


def free(board: str) -> list[int]:
    return [i for i, mark in enumerate(board) if mark == "."]


@cache
def value(board: str) -> int:
    """1, 0 or -1: what the side to move gets if both play perfectly."""
    if winner(board):
        return -1
    cells = free(board)
    return max((-value(put(board, i)) for i in cells), default=0)


def best_cells(board: str) -> list[int]:
    return [i for i in free(board) if -value(put(board, i)) == value(board)]


@cache
def openings(stones: int) -> tuple[str, ...]:
    """All boards with so many stones that no side has won."""
    crosses, noughts = (stones + 1) // 2, stones // 2
    out: list[str] = []
    for xs in combinations(range(9), crosses):
        for os in combinations([i for i in range(9) if i not in xs], noughts):
            board = "".join("x" if i in xs else "o" if i in os else "." for i in range(9))
            out += [] if winner(board) else [board]
    return tuple(out)


def _cells(seen: Seen) -> list[str]:
    return [str(i + 1) for i in free(seen.state)]


def perfect(seen: Seen, key: int) -> str:
    return picked([str(i + 1) for i in best_cells(seen.state)], "best", key)


careless = from_words(_cells)


class TicTacToe(Game[str]):
    name = "tictactoe"
    about = "two seats, from all openings of four, two or one stones"
    rules = "Three of your marks in a row win. A free cell shows its number. An action is the number of a free cell."
    seats = SEATS
    graded = True
    words = spoken("three in a row you are x o win lose draw nothing happens")
    levels = {1: 4, 2: 2, 3: 1}  # stones on the board
    players = {
        "perfect": perfect,
        "careful": mixed(perfect, careless, 0.8),
        "careless": mixed(perfect, careless, 0.3),
        "random": careless,
    }

    @classmethod
    def count(cls, level: int) -> int:
        return len(openings(cls.levels[level]))

    @classmethod
    def numbered(cls, level: int, rank: int) -> dict[str, Any]:
        return {"board": openings(cls.levels[level])[rank], "turns": 18}

    @classmethod
    def asked(cls, facts: Facts) -> str:
        return "three in a row"

    def begin(self, facts: Facts) -> str:
        board = wanted(facts, "board", str, "tictactoe")
        ahead = board.count("x") - board.count("o")
        if len(board) != 9 or set(board) - set("xo.") or ahead not in (0, 1) or winner(board) or "." not in board:
            raise ValueError(f"tictactoe: {board!r} is no board to go on from. Write nine of x o . with x to begin.")
        return board

    def move(self, state: str, words: list[str]) -> Moved[str]:
        n = number(words[0]) if len(words) == 1 else None
        if n is None or not 1 <= n <= 9 or state[n - 1] != ".":
            return nothing(state)
        board = put(state, n - 1)
        won = winner(board)
        if won:
            seat = SEATS[MARKS.index(won)]  # the text is for the other one
            return Moved(board, LOST, True, True, outcomes={s: 1.0 if s == seat else -1.0 for s in SEATS})
        if "." not in board:
            return Moved(board, "draw", True, True, outcomes=dict.fromkeys(SEATS, 0.0))
        return Moved(board)

    def seat(self, state: str) -> str:
        return SEATS[MARKS.index(to_move(state))]

    def view(self, state: str) -> str:
        cells = [str(i + 1) if mark == "." else mark for i, mark in enumerate(state)]
        return f"you are {to_move(state)} {' '.join(cells)}"

    def key(self, state: str) -> str:
        return state

    def choices(self, state: str) -> Sequence[str]:
        return [str(i + 1) for i in free(state)]
