"""A small negotiation: a buyer and a seller make offers in turn, until one accepts, leaves, or the turns run out.

The value of the buyer and the cost of the seller are private. A deal at a price pays value − price to the buyer and
price − cost to the seller, divided by the highest price; without a deal both get nothing.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gruppo.envs.base import Seen
from gruppo.envs.players import chance, mixed, picked
from gruppo.envs.world import Facts, Game, Moved, nothing, number, spoken, wanted

SEATS = ("buyer", "seller")


class State(NamedTuple):
    turn: int = 0  # the buyer acts at even turns
    offer: int = -1  # the last one; -1: none yet


def _read(seen: Seen) -> tuple[bool, int, int]:
    """Whether it is the buyer, its own number, and the offer of the other one (-1: none)."""
    who, mine, offer, *_ = seen.state.split()
    return who == "buyer", int(mine), int(offer)


def _highest(seen: Seen) -> int:
    return int(seen.state.split()[-1])


def _offers(seen: Seen, key: int, greed: float) -> str:
    """Accepts what leaves a gain; else asks for a share of the room that it sees on its own side."""
    buyer, mine, offer = _read(seen)
    late = int(seen.state.split()[3])
    gain = (mine - offer) if buyer else (offer - mine)
    goal = greed * 20 / (1 + late)
    if offer >= 0 and gain >= max(1.0, goal):
        return "accept"
    ask = mine - round(goal) - 1 if buyer else mine + round(goal) + 1
    return f"offer {min(_highest(seen), max(0, ask))}"


def fair(seen: Seen, key: int) -> str:
    return _offers(seen, key, 0.4)


def greedy(seen: Seen, key: int) -> str:
    return _offers(seen, key, 1.0)


def careless(seen: Seen, key: int) -> str:
    offer = _read(seen)[2]
    if offer >= 0 and chance("yes", key) < 0.3:
        return "accept"
    return picked([f"offer {n}" for n in range(_highest(seen) + 1)] + ["leave"], "any", key)


class Negotiation(Game[State]):
    name = "negotiation"
    about = "a buyer and a seller with private values make offers in turn"
    rules = (
        "You are buying or selling one thing. Your number is what it is worth to you, or what it costs you; the other "
        "one does not know it. Actions: offer PRICE, accept, leave."
    )
    seats = SEATS
    graded = True
    words = spoken(
        "agree on a price to you buy sell value cost they ask offer accept leave deal no lose win nothing happens"
    )
    levels = {1: (20, 4), 2: (50, 6), 3: (99, 8)}  # range of the private numbers, turns
    players = {"fair": fair, "greedy": greedy, "mixed": mixed(fair, careless, 0.6), "random": careless}

    @classmethod
    def count(cls, level: int) -> int:
        return cls.levels[level][0] ** 2

    @classmethod
    def numbered(cls, level: int, rank: int) -> dict[str, Any]:
        width, turns = cls.levels[level]
        value, cost = divmod(rank, width)
        return {"value": value + 1, "cost": cost, "range": width, "turns": turns}

    @classmethod
    def asked(cls, facts: Facts) -> str:
        return f"agree on a price to {facts['range']}"

    def begin(self, facts: Facts) -> State:
        numbers = [wanted(facts, name, int, "negotiation") for name in ("value", "cost", "range")]
        if not 0 < numbers[2] <= 99 or not all(0 <= n <= numbers[2] for n in numbers):
            raise ValueError(f"negotiation: value, cost and range are {numbers}. Use 0 to range, and range up to 99.")
        self.value, self.cost, self.range = numbers
        return State()

    def move(self, state: State, words: list[str]) -> Moved[State]:
        after = state._replace(turn=state.turn + 1)
        if words == ["leave"]:
            return Moved(after, "no deal", True, True, outcomes=dict.fromkeys(SEATS, 0.0))
        if words == ["accept"] and state.offer >= 0:
            won = {"buyer": self.value - state.offer, "seller": state.offer - self.cost}
            return Moved(after, "deal", True, True, outcomes={s: n / self.range for s, n in won.items()})
        price = number(words[1]) if len(words) == 2 and words[0] == "offer" else None
        if price is None or price > self.range:
            return nothing(state)
        return Moved(after._replace(offer=price))

    def forfeit(self, state: State, seat: str) -> dict[str, float]:
        """No deal; and what is least for the one who broke the rules, so that it never pays."""
        return {s: -1.0 if s == seat else 0.0 for s in SEATS}

    def seat(self, state: State) -> str:
        return SEATS[state.turn % 2]

    def view(self, state: State) -> str:
        mine = f"you buy value {self.value}" if state.turn % 2 == 0 else f"you sell cost {self.cost}"
        return mine + (f" they offer {state.offer}" if state.offer >= 0 else "")

    def key(self, state: State) -> str:
        mine = self.value if state.turn % 2 == 0 else self.cost
        return f"{self.seat(state)} {mine} {state.offer} {state.turn} {self.range}"

    def choices(self, state: State) -> Sequence[str]:
        offers = [f"offer {n}" for n in range(0, self.range + 1)]
        return [*offers, *(["accept"] if state.offer >= 0 else []), "leave"]
