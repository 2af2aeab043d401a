"""Evidence for mars: laws, mistakes, equivalences, resume, and numbers worked by hand on games of two players."""

import math
from typing import Any

import evidence
import pytest
from hand import close, group, mean, sample_std
from turn_by_turn import Step, by_turn, flat, packed, played

from gruppo.data import Episode, Status
from gruppo.methods import method
from gruppo.methods.mars import PlayerCentred
from gruppo.stages import Context
from gruppo.stages.check import problems

test_laws = evidence.laws("mars")
test_asks = evidence.asks("mars")
test_terms = evidence.terms("mars")
test_planted_mistakes = evidence.planted("mars")
test_equivalences = evidence.equivalences("mars")
test_resume = evidence.resume("mars")


def game(uid: int, outcome: float, first: int = 1, name: str = "", tokens: int = 1, **fields: Any) -> Episode:
    """So many moves of the first player and one of the second; the outcome comes at the last turn of each."""
    moves = [Step(agent="first", tokens=tokens) for _ in range(first - 1)]
    last = [Step("", -outcome, agent="second"), Step("", outcome, agent="first", tokens=tokens)]
    return played(uid, [*moves, *last], group=name or f"g{uid}", **fields)


@pytest.mark.parametrize("apart", [False, True])
def test_mars_card(apart: bool) -> None:
    """Card S094: the first wins two of three games, so a common mean of 0 leaves it +1/3. By player: (.67, .67, −1.33)
    and (−.67, −.67, 1.33)."""
    got = by_turn(method("mars").credit, [game(i, r, apart=apart) for i, r in enumerate((1.0, 1.0, -1.0))])
    second, first = zip(*got, strict=True)
    close(list(first), [2 / 3, 2 / 3, -4 / 3])
    close(list(second), [-2 / 3, -2 / 3, 4 / 3])
    assert mean(first) == pytest.approx(0.0) and mean(second) == pytest.approx(0.0)


def test_mars_sums_before_it_normalises() -> None:
    """A player is paid .5, 0 and 1 in one game, 0 in the other: returns 1.5, 1, 1 and 0; mean 3.5/4. With γ = .5: 0.75,
    .5, 1 and 0."""
    episodes = [
        played(0, [Step("", 0.5, agent="a"), Step(agent="a"), Step("", 1.0, agent="a")], group="x"),
        played(1, [Step("", 0.0, agent="a")], group="y"),
    ]
    close(flat(PlayerCentred(), episodes), [1.5 - 0.875, 0.125, 0.125, -0.875])
    shrunk = [0.75, 0.5, 1.0, 0.0]
    close(flat(PlayerCentred(gamma=0.5), episodes), [r - mean(shrunk) for r in shrunk])


def test_mars_as_the_code_does_it() -> None:
    """Rewards of the player's turns: 0, 0, 1 and 0, −1. Their mean is 0: centring changes nothing. With 0, 0, 1 and 1:
    mean .5, so −.5, −.5, .5 and .5; returns −.5, 0, .5 and .5, mean .125."""

    def lone(uid: int, *rewards: float) -> Episode:
        return played(uid, [Step("", r, agent="a") for r in rewards], group=f"g{uid}")

    balanced = [lone(0, 0.0, 0.0, 1.0), lone(1, 0.0, -1.0)]
    assert flat(PlayerCentred(rewards="centred"), balanced) == flat(PlayerCentred(), balanced)
    centred = flat(PlayerCentred(rewards="centred"), [lone(0, 0.0, 0.0, 1.0), lone(1, 1.0)])
    close(centred, [-0.5 - 0.125, -0.125, 0.375, 0.375])
    # Distinct returns 1 and −1 have the mean 0; over the five turns it is 1/5.
    close(flat(PlayerCentred(), balanced), [0.8, 0.8, 0.8, -1.2, -1.2])
    close(flat(PlayerCentred(values="distinct"), balanced), [1.0, 1.0, 1.0, -1.0, -1.0])


def test_mars_whitens_over_tokens() -> None:
    """Two tokens a move of the first player, one of the second: A as above, whitened over six and three tokens."""
    episodes = [game(i, r, tokens=2) for i, r in enumerate((1.0, 1.0, -1.0))]
    plain = [-2 / 3, 2 / 3, 2 / 3, -2 / 3, 2 / 3, 2 / 3, 4 / 3, -4 / 3, -4 / 3]
    adv = PlayerCentred(whiten="tokens")(Context(), packed(episodes))["adv_N"].tolist()
    close(adv, [(a - mean(plain)) / math.sqrt(sample_std(plain) ** 2 + 1e-8) for a in plain])


def test_mars_pools() -> None:
    """Two kinds of games and two tasks of one kind: the mean of the step, of the kind, of the task."""
    episodes = [
        game(0, 1.0, name="x", domain="kuhn"),
        game(1, 0.0, name="y", domain="kuhn"),
        game(2, -1.0, name="z", domain="tictactoe"),
        game(3, 0.0, name="z", domain="tictactoe"),
    ]

    def first(pool: Any) -> list[float]:
        return [turns[1] for turns in by_turn(PlayerCentred(pool=pool), episodes)]

    close(first("step"), [1.0, 0.0, -1.0, 0.0])
    close(first("domain"), [0.5, -0.5, -0.5, 0.5])
    close(first("group"), [0.0, 0.0, -0.5, 0.5])


def test_mars_of_a_player_that_did_not_act() -> None:
    """In one game the second never came to move: its mean is over the games in which it did."""
    quick = played(2, [Step("", 1.0, agent="first")], group="q")
    got = by_turn(PlayerCentred(), [game(0, 1.0), game(1, -1.0), quick])
    close([got[0][0], got[1][0]], [-1.0, 1.0])
    close([got[0][1], got[1][1], got[2][0]], [1 - 1 / 3, -1 - 1 / 3, 1 - 1 / 3])


def test_mars_failed_and_silent() -> None:
    two = [game(0, 1.0), game(1, -1.0)]
    failed = game(2, 9.0, status=Status.ENV_ERROR)
    for credit in (PlayerCentred(), PlayerCentred(values="distinct"), PlayerCentred(rewards="centred")):
        assert by_turn(credit, [*two, failed]) == [*by_turn(credit, two), [0.0, 0.0]]
    silent = [game(0, 1.0, first=2, tokens=0), game(1, -1.0)]
    got = by_turn(PlayerCentred(), silent)
    assert math.isnan(got[0][0]) and got[1][1] == pytest.approx(-1 - 1 / 3)  # it still counts twice in the mean


def test_mars_needs_no_groups() -> None:
    """R less the mean of the step, over tasks; one sample of each will do, a single game says nothing."""
    answers = [*group([1.0]), *group([0.0], name="h", first=1), *group([0.0], name="i", first=2)]
    close(flat(method("mars").credit, answers), [2 / 3, -1 / 3, -1 / 3])
    assert problems(method("mars"), Context(), samples=1) == []
    assert flat(PlayerCentred(), [game(0, 1.0)]) == [0.0, 0.0]
