"""Evidence for salt: laws, mistakes, equivalences, resume, and numbers worked by hand on episodes of several turns."""

import math
from typing import Any

import evidence
import pytest
from hand import close, group, mean
from turn_by_turn import Step, by_turn, flat, packed, played, z

from gruppo.data import Episode, Status, Use
from gruppo.methods import method
from gruppo.methods.salt import MergedSteps
from gruppo.stages.credit import GroupNormalised

test_laws = evidence.laws("salt")
test_asks = evidence.asks("salt")
test_terms = evidence.terms("salt")
test_planted_mistakes = evidence.planted("salt")
test_equivalences = evidence.equivalences("salt")
test_resume = evidence.resume("salt")

EXACT = MergedSteps(eps=0.0)


def path(uid: int, way: str, reward: float, group: str = "g", **fields: Any) -> Episode:
    """ "Sa Tb": action a in state S, then b in T. The last letter of a longer word is what it comes to."""
    words = way.split()
    final = words.pop() if len(words[-1]) == 1 else ""
    steps = [Step(w[0], action=w[1:]) for w in words]
    return played(uid, steps, reward, group, final_state=final, **fields)


FOUR = [
    path(0, "Sa Tb Vc W", 1.0),  # S and T as the second, then on its own
    path(1, "Sa Tb Vd X", 0.0),
    path(2, "Sa Tc Ud Y", 0.0),
    path(3, "Sa Te Ue Z", 0.0),
]


@pytest.mark.parametrize("apart", [False, True])
def test_salt_card(apart: bool) -> None:
    """Card S084: A = (1.5, −.5, −.5, −.5). The first step is shared by all, 0; the second by two, .5."""
    ways = [("Sa Tb Vc W", 1.0), ("Sa Tb Vd X", 0.0), ("Sa Tc Ud Y", 0.0), ("Sa Te Ue Z", 0.0)]
    got = by_turn(EXACT, [path(i, w, r, apart=apart) for i, (w, r) in enumerate(ways)])
    close(got[0], [0.0, 0.5, 1.5])
    close(got[1], [0.0, 0.5, -0.5])
    close(got[2], [0.0, -0.5, -0.5])
    close(got[3], [0.0, -0.5, -0.5])


def test_salt_keeps_the_sum() -> None:
    """Card: the sum over all turns is that of GRPO."""
    plain = flat(GroupNormalised(eps=0.0), FOUR)
    close(math.fsum(flat(EXACT, FOUR)), math.fsum(plain))
    looped = [path(0, "Sa Sa Sa Tb W", 1.0), path(1, "Sa Tb X", 0.0), path(2, "Sa Sa Tb X", 0.0)]
    close(math.fsum(flat(EXACT, looped)), math.fsum(flat(GroupNormalised(eps=0.0), looped)))


def test_salt_merges_what_is_the_same() -> None:
    """Another action, another end, another task, another state: each is another edge."""
    good, bad = z([1.0, 0.0])

    def second(way: str, **fields: Any) -> float:
        return by_turn(EXACT, [path(0, "Sa Tb W", 1.0), path(1, way, 0.0, **fields)])[0][0]

    close(second("Sa Tc X"), 0.0)  # the same first step
    for other in ("Sc Tb W", "Sa Ub W", "Qa Tb W"):
        close(second(other), good)
    close(by_turn(EXACT, [*FOUR[:2], path(4, "Sa Tb Vc W", 0.0, "h"), path(5, "Sa Tb Vc W", 1.0, "h")])[0][0], 0.0)
    close(by_turn(EXACT, [path(0, "Sa W", 1.0), path(1, "Sa X", 0.0)])[0], [good])
    close(by_turn(EXACT, [path(0, "Sa W", 1.0), path(1, "Sa W", 0.0)])[1], [0.0])
    assert bad == -good


def test_salt_twice_in_an_episode_counts_twice() -> None:
    """The loop S → S is made twice by the good one and once by the other: (2 · good + bad) / 3."""
    good, bad = z([1.0, 0.0])
    got = by_turn(EXACT, [path(0, "Sa Sa Sb W", 1.0), path(1, "Sa Sc X", 0.0)])
    close(got[0], [(2 * good + bad) / 3] * 2 + [good])
    close(got[1], [(2 * good + bad) / 3, bad])


def test_salt_with_history() -> None:
    """Both go from T to V by b, but one came from S and the other from R."""
    episodes = [path(0, "Sa Tb V", 1.0), path(1, "Ra Tb V", 0.0)]
    good, bad = z([1.0, 0.0])
    close(flat(EXACT, episodes), [good, 0.0, bad, 0.0])
    close(flat(MergedSteps(eps=0.0, history=1), episodes), [good, good, bad, bad])
    alike = [path(0, "Sa Tb V", 1.0), path(1, "Sa Tb V", 0.0)]
    close(flat(MergedSteps(eps=0.0, history=3), alike), [0.0] * 4)  # both begin here, too


def test_salt_on_rloo() -> None:
    """R less the mean of the others: 1, −1/3, −1/3, −1/3; two of them merged: 1/3."""
    close(by_turn(MergedSteps(normalise="leave_one_out"), FOUR)[0], [0.0, 1 / 3, 1.0])


def test_salt_does_not_merge_what_it_does_not_know() -> None:
    """No state, no action or no end: equal to nothing, so GRPO."""
    good, bad = z([1.0, 0.0])
    for step in (Step("", action="a"), Step("S"), Step("S", action="a")):
        close(flat(EXACT, [played(i, [step], r) for i, r in enumerate((1.0, 0.0))]), [good, bad])
    rewards = [1.0, 0.0, 1.0]
    assert flat(MergedSteps(), group(rewards)) == flat(GroupNormalised(), group(rewards))
    assert flat(MergedSteps(), [path(0, "Sa T", 1.0)]) == [0.0]


def test_salt_failed_unused_and_silent() -> None:
    """A failed episode is no edge, one of no use neither; a turn without tokens is one, with nothing to learn."""
    two = [path(0, "Sa Tb W", 1.0), path(1, "Sa Tc X", 0.0)]
    failed, unused = path(2, "Sa Tb W", 9.0, status=Status.ENV_ERROR), path(3, "Sa Tb W", 9.0, use=Use.NONE)
    assert by_turn(EXACT, [*two, failed, unused]) == [*by_turn(EXACT, two), [0.0, 0.0], [0.0, 0.0]]
    quiet = [
        played(0, [Step("S", tokens=0, action="a"), Step("T", action="b")], 1.0),
        played(1, [Step("S", action="a"), Step("T", action="c")], 0.0),
    ]
    got = by_turn(EXACT, quiet)
    close(got[1][0], mean(z([1.0, 0.0])))
    assert math.isnan(got[0][0])


def test_salt_edges_are_those_of_an_agent() -> None:
    """The first seat does the same in both games; the second answers in two ways. Outcomes ±1, z = ±√½."""

    def game(uid: int, answer: str, outcome: float) -> Episode:
        first = Step("S", outcome, action="a", agent="first")
        return played(uid, [first, Step("S", -outcome, action=answer, agent="second")], final_state="end")

    got = by_turn(EXACT, [game(0, "b", 1.0), game(1, "c", -1.0)])
    close(got[0], [0.0, -math.sqrt(0.5)])
    assert packed([game(0, "b", 1.0)]).reward_EA.tolist() == [[1.0, -1.0]]
    assert method("salt").credit == MergedSteps()
