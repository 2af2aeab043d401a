"""Solve and verify: one agent works out a sum, another says whether it is right; a `no` gives a second and a third try.

The solver gets 1 if its last answer is right. The verifier gets 1 if its last word about it is.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gruppo.envs.base import Seen
from gruppo.envs.players import chance, mixed, picked
from gruppo.envs.world import Facts, Game, Moved, nothing, number, spoken, wanted

SEATS = ("solver", "verifier")
TRIES = 3


class State(NamedTuple):
    said: tuple[int, ...] = ()  # the answers so far
    asked: bool = False  # whether the verifier acts


def _sum(seen: Seen) -> int:
    a, b = seen.state.split()[:2]
    return int(a) + int(b)


def right(seen: Seen, key: int) -> str:
    """Adds without a mistake, and knows a right sum."""
    if seen.agent == "solver":
        return str(_sum(seen))
    return "yes" if seen.state.split()[-1] == str(_sum(seen)) else "no"


def careless(seen: Seen, key: int) -> str:
    """A number near the sum, or any verdict."""
    if seen.agent == "solver":
        return str(min(99, max(0, _sum(seen) + round(10 * chance("near", key)) - 5)))
    return picked(("yes", "no"), "any", key)


class Verify(Game[State]):
    name = "verify"
    about = "two agents: one solves a sum, one verifies it"
    rules = "The solver answers a sum with a number. The verifier says yes if it is right, else no."
    seats = SEATS
    can = frozenset({"actions", "gold", "players", "snapshot"})
    words = spoken("solve and verify + = yes no try again right wrong you lose win nothing happens")
    levels = {1: 9, 2: 29, 3: 49}  # the largest number of a sum
    players = {"right": right, "careful": mixed(right, careless, 0.7), "random": careless}

    @classmethod
    def count(cls, level: int) -> int:
        return cls.levels[level] ** 2

    @classmethod
    def numbered(cls, level: int, rank: int) -> dict[str, Any]:
        a, b = divmod(rank, cls.levels[level])
        return {"a": a + 1, "b": b + 1, "turns": 2 * TRIES + 2}

    @classmethod
    def asked(cls, facts: Facts) -> str:
        return "solve and verify"

    @classmethod
    def answer(cls, facts: Facts) -> str:
        return str(facts["a"] + facts["b"])

    def begin(self, facts: Facts) -> State:
        self.a, self.b = (wanted(facts, name, int, "verify") for name in ("a", "b"))
        if min(self.a, self.b) < 0 or self.a + self.b > 99:
            raise ValueError(f"verify: {self.a} + {self.b} is not between 0 and 99. Use smaller numbers.")
        return State()

    def move(self, state: State, words: list[str]) -> Moved[State]:
        if len(words) != 1:
            return nothing(state)
        if not state.asked:
            n = number(words[0])
            return nothing(state) if n is None else Moved(State((*state.said, n), True))
        if words[0] not in ("yes", "no"):
            return nothing(state)
        yes, fits = words[0] == "yes", state.said[-1] == self.a + self.b
        if yes or len(state.said) == TRIES:
            won = {"solver": float(fits), "verifier": float(yes == fits)}
            return Moved(state._replace(asked=False), "right" if fits else "wrong", True, True, outcomes=won)
        return Moved(State(state.said))

    def forfeit(self, state: State, seat: str) -> dict[str, float]:
        return {s: -1.0 if s == seat else 0.0 for s in SEATS}

    def seat(self, state: State) -> str:
        return SEATS[state.asked]

    def view(self, state: State) -> str:
        text = f"{self.a} + {self.b} ="
        if state.asked:
            return f"{text} {state.said[-1]}"
        return f"no try again {text}" if state.said else text

    def key(self, state: State) -> str:
        return " ".join(map(str, (self.a, self.b, *state.said)))

    def best(self, state: State) -> str:
        right = self.a + self.b
        return ("yes" if state.said[-1] == right else "no") if state.asked else str(right)

    def choices(self, state: State) -> Sequence[str]:
        return ("yes", "no") if state.asked else [str(n) for n in range(2 * self.facts["a"] + 2 * self.facts["b"])][:99]
