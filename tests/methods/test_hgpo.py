"""Evidence for hgpo: laws, mistakes, equivalences, resume, and numbers worked by hand on episodes of several turns."""

import math

import evidence
import pytest
from hand import close, group, mean
from turn_by_turn import Step, by_turn, flat, played, walk

from gruppo.data import Status
from gruppo.methods import method
from gruppo.methods.hgpo import NestedAnchors

test_laws = evidence.laws("hgpo")
test_asks = evidence.asks("hgpo")
test_terms = evidence.terms("hgpo")
test_planted_mistakes = evidence.planted("hgpo")
test_equivalences = evidence.equivalences("hgpo")
test_resume = evidence.resume("hgpo")


def z0(x: list[float]) -> list[float]:
    """(x − mean) / std, std with n."""
    std = math.sqrt(mean([(v - mean(x)) ** 2 for v in x]))
    return [(v - mean(x)) / std if std else 0.0 for v in x]


@pytest.mark.parametrize(("last", "want"), [(1.0, [0.577, 0.577, -1.732, 0.577]), (0.0, [1.0, 1.0, -1.0, -1.0])])
@pytest.mark.parametrize("apart", [False, True])
def test_hgpo_card(last: float, want: list[float], apart: bool) -> None:
    """Card S025: S is reached by four walks with g = (1, 1, 0, last); only the first and the last come from P. K = 1.
    Among those two, equal returns say nothing; unequal ones are ±1, and the weights do not matter."""
    ways, paid = ["PS", "QS", "RS", "PS"], [1.0, 1.0, 0.0, last]
    walks = [walk(i, w, r, apart=apart) for i, (w, r) in enumerate(zip(ways, paid, strict=True))]
    got = [turns[1] for turns in by_turn(NestedAnchors(history=1), walks)]
    assert got == pytest.approx(want, abs=5e-4)


def test_hgpo_weights() -> None:
    """At S: g = (1, 0, .5, 0), deviation √.171875; the first two come from P: ±1. Weights 1 and 2, or 2 and 3."""
    walks = [walk(i, w, r) for i, (w, r) in enumerate(zip(["PS", "PS", "QS", "RS"], (1.0, 0.0, 0.5, 0.0), strict=True))]
    wide = z0([1.0, 0.0, 0.5, 0.0])
    close(wide[0], 0.625 / math.sqrt(0.171875))
    for alpha, shift, (a, b) in ((1.0, 0.0, (1, 2)), (1.0, 1.0, (2, 3)), (2.0, 0.0, (1, 4)), (0.0, 0.0, (1, 1))):
        got = by_turn(NestedAnchors(history=1, alpha=alpha, depth_shift=shift, eps=0.0), walks)
        close(got[0][1], (a * wide[0] + b * 1.0) / (a + b))
        close([got[2][1], got[3][1]], wide[2:])  # nobody else came this way
        close([turns[0] for turns in got], [1.0, -1.0, 0.0, 0.0])  # P: .95 and 0; Q and R alone


def test_hgpo_three_deep() -> None:
    """All begin in A; two go A B C, one goes D B C: groups of 3, 3 and 2 at C, weights 1, 2 and 3."""
    walks = [walk(0, "ABC", 1.0), walk(1, "ABC", 0.0), walk(2, "DBC", 1.0)]
    got = by_turn(NestedAnchors(eps=0.0), walks)
    three, two = z0([1.0, 0.0, 1.0]), [1.0, -1.0]
    close([t[2] for t in got[:2]], [(1 * a + 2 * a + 3 * b) / 6 for a, b in zip(three[:2], two, strict=True)][0:2])
    # D B C agrees with nobody in three states, and A B C with it in two alone.
    close(got[2][2], three[2])
    # At B they agree in one state, three of them, and in two, two of them.
    close([t[1] for t in got[:2]], [(a + 2 * b) / 3 for a, b in zip(three[:2], two, strict=True)])
    close([t[0] for t in got], [1.0, -1.0, 0.0])
    assert by_turn(NestedAnchors(history=0, eps=0.0), walks)[0][2] == pytest.approx(three[0])


def test_hgpo_one_at_the_mean_says_nothing() -> None:
    """Returns 1, .5, 0 at S: the second has a_1 = 0, so only its group of two counts, in which it is better."""
    walks = [walk(0, "QS", 1.0), walk(1, "PS", 0.5), walk(2, "PS", 0.0)]
    close([t[1] for t in by_turn(NestedAnchors(history=1, eps=0.0), walks)][1], 1.0)
    # As z-scores 0.1, 0.2 and 0.3 have their mean up to rounding: that does not decide, either.
    rounded = [walk(0, "QS", 0.1), walk(1, "PS", 0.2), walk(2, "PS", 0.3)]
    close([t[1] for t in by_turn(NestedAnchors(history=1, eps=0.0), rounded)][1], -1.0)


def test_hgpo_with_the_episode_as_its_widest_group() -> None:
    """base_group: each turn with the return of its episode among all turns, n − 1; weights 1, then 2 and 3."""
    walks = [walk(0, "PS", 1.0), walk(1, "PS", 0.0), walk(2, "T", 1.0)]
    share = mean([1.0, 1.0, 0.0, 0.0, 1.0])
    std = math.sqrt((3 * (1 - share) ** 2 + 2 * share**2) / 4)
    got = by_turn(NestedAnchors(base="episode", eps=0.0), walks)
    close(got[0][1], (1 * (1 - share) / std + 2 * 1.0 + 3 * 1.0) / 6)
    close(got[1][0], (1 * (0 - share) / std + 2 * -1.0) / 3)
    close(got[2], [(1 - share) / std])


def test_hgpo_without_a_division() -> None:
    walks = [walk(0, "PS", 3.0), walk(1, "QS", 0.0)]
    assert by_turn(NestedAnchors(normalise="mean"), walks) == [[0.0, 1.5], [0.0, -1.5]]
    close(flat(NestedAnchors(ddof=1, eps=0.0), walks), [0.0, math.sqrt(0.5), 0.0, -math.sqrt(0.5)])


def test_hgpo_edges() -> None:
    """Nothing recurs: 0. A loop is compared with itself. A failed walk leaves no trace. Another task is another."""
    credit = NestedAnchors(eps=0.0)
    assert flat(credit, [walk(0, "AB", 1.0), walk(1, "CD", 0.0)]) == [0.0] * 4
    (first, second), _ = by_turn(credit, [walk(0, "AA", 1.0), walk(1, "B", 0.0)])
    close([first, second], [-1.0, 1.0])
    two = [walk(0, "AB", 1.0), walk(1, "AB", 0.0)]
    failed = walk(2, "AB", 7.0, status=Status.TIMEOUT)
    assert by_turn(credit, [*two, failed]) == [*by_turn(credit, two), [0.0, 0.0]]
    assert flat(credit, [walk(0, "A", 1.0), walk(1, "A", 0.0, "h")]) == [0.0, 0.0]
    silent = [played(0, [Step("A"), Step("B", 1.0, tokens=0), Step("C")]), walk(1, "ABC", 0.0)]
    (start, nothing, end), _ = by_turn(credit, silent)
    close(start, 1.0)
    assert math.isnan(nothing) and end == 0.0


def test_hgpo_may_push_right_episodes_down() -> None:
    """Two right ones loop, each where nobody else is; a wrong one is alone. The right ones lose on the whole, the wrong
    one does not: a turn is not compared with what other states lead to. With the episode as the widest group it is."""
    walks = [walk(0, "AAAA", 1.0), walk(1, "BB", 1.0), walk(2, "C", 0.0)]
    first, second, wrong = by_turn(method("hgpo").credit, walks)
    assert math.fsum(first) < -1.5 and math.fsum(second) == pytest.approx(0.0) and wrong == [0.0]
    *_, wrong = by_turn(NestedAnchors(base="episode"), walks)
    assert wrong[0] < -2


def test_hgpo_without_an_environment_is_grpo() -> None:
    rewards = [1.0, 0.0, 0.0, 1.0, 0.0]
    close(flat(NestedAnchors(eps=0.0), group(rewards)), z0(rewards))
    assert flat(method("hgpo").credit, group([1.0])) == [0.0]


def test_hgpo_histories_are_those_of_an_agent() -> None:
    """What the other seat saw in between is no part of the history."""

    def game(uid: int, other: str, outcome: float) -> list[Step]:
        return [Step("P", agent="a"), Step(other, -outcome, agent="b"), Step("S", outcome, agent="a")]

    episodes = [played(i, game(i, other, r)) for i, (other, r) in enumerate((("x", 1.0), ("y", -1.0)))]
    close(by_turn(NestedAnchors(history=1, eps=0.0), episodes)[0], [1.0, 0.0, 1.0])
