"""Kuhn poker, exactly: the value of two strategies, the best response to one, and exploitability.

A strategy maps what a seat knows, such as `queen check bet`, to the probability of the bold action (bet or call). The
value of the game is −1/18 for the first seat. Its equilibria have one parameter α in [0, 1/3], how often the first seat
bluffs with a jack (Kuhn 1950):

    first:   jack bets α, queen never bets, king bets 3α; to a bet after its check, queen calls α + 1/3, king always
    second:  to a bet, queen calls 1/3 and king always; after a check, jack bluffs 1/3, queen never bets, king always

    exploitability(σ) = ½ (max_τ u_second(σ_first, τ) + max_τ u_first(τ, σ_second)),   0 for an equilibrium
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product

from gruppo.envs.kuhn import AHEAD, CARDS, DEALS, allowed, payoff, told

Strategy = Mapping[str, float]
VALUE = -1 / 18

SITUATIONS = tuple(
    tuple(" ".join([card, *said.split()]) for card in CARDS for said in group)
    for group in (("", "check bet"), ("check", "bet"))
)
ALL = (*SITUATIONS[0], *SITUATIONS[1])


def equilibrium(bluff: float = 0.0) -> dict[str, float]:
    """The equilibrium in which the first seat bets a jack with this probability, 0 to 1/3."""
    if not 0 <= bluff <= 1 / 3:
        raise ValueError(f"bluff={bluff:g}: equilibria of Kuhn poker have 0 to 1/3. Use one of these.")
    first = {"jack": bluff, "queen": 0.0, "king": 3 * bluff}
    after = {"jack check bet": 0.0, "queen check bet": bluff + 1 / 3, "king check bet": 1.0}
    second = {"jack check": 1 / 3, "queen check": 0.0, "king check": 1.0}
    called = {"jack bet": 0.0, "queen bet": 1 / 3, "king bet": 1.0}
    return {**first, **after, **second, **called}


def value(first: Strategy, second: Strategy) -> float:
    """What the first seat wins on average, in antes."""
    return sum(_from(deal, (), (first, second)) for deal in DEALS) / len(DEALS)


def _from(deal: tuple[int, int], said: tuple[str, ...], both: tuple[Strategy, Strategy]) -> float:
    paid = payoff(deal, said)
    if paid is not None:
        return paid
    seat = len(said) % 2
    bold = both[seat][told(CARDS[deal[seat]], said)]
    chances = zip(allowed(said), (1 - bold, bold), strict=True)
    return sum(p * _from(deal, (*said, word), both) for word, p in chances if p)


def best_response(strategy: Strategy, seat: int) -> tuple[float, dict[str, float]]:
    """The most that a seat can win against this strategy of the other one, and how: all 64 pure ways are tried."""
    found: list[tuple[float, dict[str, float]]] = []
    for bold in product((0.0, 1.0), repeat=len(SITUATIONS[seat])):
        mine = dict(zip(SITUATIONS[seat], bold, strict=True))
        won = value(mine, strategy) if seat == 0 else -value(strategy, mine)
        found.append((won, mine))
    return max(found, key=lambda pair: pair[0])


def exploitability(strategy: Strategy) -> float:
    """How much both best responses win against it, on average; 0 for an equilibrium."""
    missing = [key for key in ALL if key not in strategy]
    if missing:
        raise ValueError(f"the strategy says nothing about {missing[0]!r}. Give all twelve: {', '.join(ALL)}.")
    return (best_response(strategy, 0)[0] + best_response(strategy, 1)[0]) / 2


def observed(played: Iterable[tuple[str, str]], unseen: float = 0.5) -> dict[str, float]:
    """The strategy in (state, action) pairs as the world gives them; situations that never came have `unseen`."""
    seen, bold = Counter[str](), Counter[str]()
    for state, action in played:
        seen[state] += 1
        bold[state] += action in AHEAD
    return {key: bold[key] / seen[key] if seen[key] else unseen for key in ALL}
