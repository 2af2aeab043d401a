"""Twenty questions: ask about properties, then say what it is. One guess; a wrong one loses."""

from collections.abc import Sequence
from math import comb
from typing import Any

from gruppo.envs.world import LOST, WON, Facts, Moved, World, nothing, spoken, wanted

ASPECTS = ("alive", "animal", "food", "big", "made", "metal", "home", "moves", "wet", "worn")
# Each thing with its properties. No two have the same.
TABLE = {
    "dog": "alive animal home moves",
    "snail": "alive animal wet",
    "horse": "alive animal big moves",
    "fish": "alive animal food moves wet",
    "bird": "alive animal moves",
    "bee": "alive animal",
    "cow": "alive animal big food moves",
    "tree": "alive big",
    "rose": "alive home",
    "grass": "alive",
    "apple": "food",
    "bread": "food made home",
    "soup": "food made home wet",
    "salt": "food home",
    "milk": "food home wet",
    "cup": "made home",
    "spoon": "made metal home",
    "book": "made",
    "lamp": "made metal home big",
    "chair": "made home big",
    "car": "made metal big moves",
    "boat": "made big moves wet",
    "bike": "made metal moves",
    "house": "made big",
    "bridge": "made metal big",
    "pool": "made big wet",
    "hat": "made home worn",
    "ring": "made metal worn",
    "coat": "made home worn big",
    "coin": "made metal",
    "gold": "metal",
    "moon": "big moves",
    "river": "big moves wet",
    "rain": "moves wet",
    "sea": "big wet",
    "stone": "",
}
THINGS = tuple(TABLE)
KNOWN = {thing: frozenset(said.split()) for thing, said in TABLE.items()}

State = tuple[tuple[str, ...], str]  # what it can still be; the last answer


class Twenty(World[State]):
    name = "twenty"
    about = "twenty questions: ask about properties, then guess once"
    rules = (
        "Find out what it is. Ask: is it PROPERTY, with one of "
        + ", ".join(ASPECTS)
        + ". Then say: it is THING. A wrong "
        "guess ends it."
    )
    words = spoken("which is it ask yes no you win lose nothing happens") | {*ASPECTS, *THINGS}
    levels = {1: (4, 5), 2: (8, 6), 3: (12, 8), 4: (len(THINGS), 12)}  # how many things, turns

    @classmethod
    def count(cls, level: int) -> int:
        size = cls.levels[level][0]
        return comb(len(THINGS), size) * size

    @classmethod
    def numbered(cls, level: int, rank: int) -> dict[str, Any]:
        size, turns = cls.levels[level]
        rank, at = divmod(rank, size)
        among = [THINGS[i] for i in _subset(len(THINGS), size, rank)]
        return {"among": among, "secret": among[at], "turns": turns}

    @classmethod
    def asked(cls, facts: Facts) -> str:
        return "which is it" + ("" if len(facts["among"]) == len(THINGS) else " " + " ".join(facts["among"]))

    @classmethod
    def answer(cls, facts: Facts) -> str:
        return facts["secret"]

    def begin(self, facts: Facts) -> State:
        among = tuple(wanted(facts, "among", list, "twenty"))
        self.secret = wanted(facts, "secret", str, "twenty")
        strange = [thing for thing in among if thing not in KNOWN]
        if strange or self.secret not in among:
            raise ValueError(f"twenty: {(*strange, self.secret)[0]!r} is unknown or not among them. Use {THINGS}.")
        return among, "ask"

    def move(self, state: State, words: list[str]) -> Moved[State]:
        if len(words) != 3:
            return nothing(state)
        *verb, what = words
        if verb == ["it", "is"] and what in KNOWN:
            won = what == self.secret
            return Moved(state, WON if won else LOST, True, True, float(won))
        if verb == ["is", "it"] and what in ASPECTS:
            said = what in KNOWN[self.secret]
            left = tuple(thing for thing in state[0] if (what in KNOWN[thing]) == said)
            return Moved((left, "yes" if said else "no"))
        return nothing(state)

    def view(self, state: State) -> str:
        return state[1]

    def key(self, state: State) -> str:
        return " ".join(state[0])

    def choices(self, state: State) -> Sequence[str]:
        return [*(f"is it {aspect}" for aspect in ASPECTS), *(f"it is {thing}" for thing in self.facts["among"])]

    def best(self, state: State) -> str:
        left = state[0]
        if len(left) == 1:
            return f"it is {left[0]}"
        # The question that divides them most evenly.
        return f"is it {min(ASPECTS, key=lambda aspect: abs(2 * sum(aspect in KNOWN[t] for t in left) - len(left)))}"


def _subset(n: int, size: int, rank: int) -> list[int]:
    """The subset of 0..n-1 with this number, ascending (lexicographic order)."""
    out: list[int] = []
    for i in range(n):
        if len(out) == size:
            break
        with_i = comb(n - i - 1, size - len(out) - 1)
        if rank < with_i:
            out.append(i)
        else:
            rank -= with_i
    return out
