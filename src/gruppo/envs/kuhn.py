"""Kuhn poker (Kuhn 1950): three cards, one each, an ante of one, and at most one bet of one.

The first seat checks or bets. A check may be followed by a bet, a bet is called or folded. `kuhn_exact.py` has the
exact best response to any way of playing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gruppo.envs.base import Player, Seen
from gruppo.envs.players import chance, from_words, mixed
from gruppo.envs.world import Facts, Game, Moved, nothing, spoken, wanted

CARDS = ("jack", "queen", "king")
DEALS = tuple((a, b) for a in range(3) for b in range(3) if a != b)
SEATS = ("first", "second")
PASS, AHEAD = ("check", "fold"), ("bet", "call")  # the two sides of each decision

State = tuple[int, int, tuple[str, ...]]  # the two cards, and what was said


def payoff(cards: tuple[int, int], said: tuple[str, ...]) -> float | None:
    """What the first seat wins, in antes; None while the hand goes on."""
    higher = 1.0 if cards[0] > cards[1] else -1.0
    if said in (("check", "check"),):
        return higher
    if said and said[-1] == "call":
        return 2 * higher
    if said and said[-1] == "fold":
        return 1.0 if len(said) == 2 else -1.0
    return None


def allowed(said: Sequence[str]) -> tuple[str, str]:
    """The careful action first, then the bold one."""
    return ("fold", "call") if said and said[-1] == "bet" else ("check", "bet")


def told(card: str, said: Sequence[str]) -> str:
    """The key of what a seat knows: its card, and what was said. `kuhn_exact` uses the same keys."""
    return " ".join([card, *said])


def strategy_player(strategy: Mapping[str, float]) -> Player:
    """Plays the bold action with the probability that the strategy has for what it knows."""

    def player(seen: Seen, key: int) -> str:
        _, *said = seen.state.split()
        return allowed(said)[chance("bold", key) < strategy[seen.state]]

    return player


def _honest(seen: Seen, key: int) -> str:
    """Bets and calls with the king, calls half of the time with the queen."""
    card, *said = seen.state.split()
    bold = card == "king" or (card == "queen" and bool(said) and said[-1] == "bet" and chance("half", key) < 0.5)
    return allowed(said)[bold]


def _bold(seen: Seen, key: int) -> str:
    return allowed(seen.state.split()[1:])[1]


def _equilibrium(seen: Seen, key: int) -> str:
    from gruppo.envs.kuhn_exact import equilibrium

    return strategy_player(equilibrium(1 / 3))(seen, key)


_any = from_words(lambda seen: allowed(seen.state.split()[1:]))


class Kuhn(Game[State]):
    name = "kuhn"
    about = "Kuhn poker for two seats; exploitability is exact"
    rules = (
        "Kuhn poker: jack, queen, king, one card each, ante one. Check or bet one; a bet is called or folded. The "
        "higher card wins. Actions: check, bet, call, fold."
    )
    seats = SEATS
    graded = True
    words = spoken("play poker you hold they check bet call fold lose win jack queen king nothing happens")
    levels = {1: None}
    players = {
        "equilibrium": _equilibrium,
        "honest": _honest,
        "careless": mixed(_honest, _any, 0.4),
        "bold": _bold,
        "random": _any,
    }

    @classmethod
    def count(cls, level: int) -> int:
        return 6_000  # six deals, again and again: a hand is chance, and no deal can be held out

    @classmethod
    def numbered(cls, level: int, rank: int) -> dict[str, Any]:
        return {"cards": list(DEALS[rank % 6]), "hand": rank, "turns": 8}

    @classmethod
    def asked(cls, facts: Facts) -> str:
        return "play poker"

    def begin(self, facts: Facts) -> State:
        cards = tuple(wanted(facts, "cards", list, "kuhn"))
        if cards not in DEALS:
            raise ValueError(f"kuhn: {list(cards)} is no deal. Give two different cards of 0 (jack), 1, 2 (king).")
        return cards[0], cards[1], ()

    def move(self, state: State, words: list[str]) -> Moved[State]:
        first, second, said = state
        if len(words) != 1 or words[0] not in allowed(said):
            return nothing(state)
        said = (*said, words[0])
        won = payoff((first, second), said)
        if won is None:
            return Moved((first, second, said))
        text = f"they hold {CARDS[first if len(said) % 2 else second]}"
        return Moved((first, second, said), text, True, True, outcomes={"first": won, "second": -won})

    def forfeit(self, state: State, seat: str) -> dict[str, float]:
        """The most that can be lost, so that it never pays."""
        return {s: -2.0 if s == seat else 2.0 for s in SEATS}

    def seat(self, state: State) -> str:
        return SEATS[len(state[2]) % 2]

    def view(self, state: State) -> str:
        mine = len(state[2]) % 2
        card = CARDS[state[:2][mine]]
        said = [f"{'you' if i % 2 == mine else 'they'} {word}" for i, word in enumerate(state[2])]
        return " ".join([f"you hold {card}", *said])

    def key(self, state: State) -> str:
        cards, said = state[:2], state[2]
        return told(CARDS[cards[len(said) % 2]], said)

    def choices(self, state: State) -> Sequence[str]:
        return allowed(state[2])
