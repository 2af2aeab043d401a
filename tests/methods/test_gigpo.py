"""Evidence for gigpo: laws, mistakes, equivalences, resume, and numbers worked by hand on episodes of several turns."""

import math

import evidence
import pytest
from hand import close, group
from turn_by_turn import Step, by_turn, flat, packed, played, walk, z

from gruppo.data import Episode, Status, Use
from gruppo.methods import method
from gruppo.methods.gigpo import AnchorGroups
from gruppo.stages.credit import GroupNormalised
from gruppo.stages.turns import anchor_K, seat_return, stateless_K, turn_return

test_laws = evidence.laws("gigpo")
test_asks = evidence.asks("gigpo")
test_terms = evidence.terms("gigpo")
test_planted_mistakes = evidence.planted("gigpo")
test_equivalences = evidence.equivalences("gigpo")
test_resume = evidence.resume("gigpo")

EXACT = AnchorGroups(eps=0.0)


@pytest.mark.parametrize("apart", [False, True])
def test_gigpo_card(apart: bool) -> None:
    """Card S059: both succeed, in one turn and in two. A^E = 0; returns at S are 1 and .95: ±.707. GRPO gives 0."""
    episodes = [walk(0, "S", 1.0, apart=apart), walk(1, "ST", 1.0, apart=apart)]
    (short,), (long, last) = by_turn(method("gigpo").credit, episodes)
    half = 0.05 / 2
    close([short, long], [half / (half * math.sqrt(2) + 1e-6), -half / (half * math.sqrt(2) + 1e-6)], 1e-9)
    assert short == pytest.approx(0.707, abs=5e-4) and last == 0.0
    assert by_turn(GroupNormalised(), episodes) == [[0.0], [0.0, 0.0]]


def test_gigpo_by_hand() -> None:
    """Three walks through S, T and U, two of which reach the goal: returns .9025, .95, 1; 0, 0; .95, 1."""
    episodes = [walk(0, "STU", 1.0), walk(1, "SU", 0.0), walk(2, "UT", 1.0)]
    whole = z([1.0, 0.0, 1.0])
    at_s, at_t, at_u = z([0.9025, 0.0]), z([0.95, 1.0]), z([1.0, 0.0, 0.95])
    want = [
        [whole[0] + at_s[0], whole[0] + at_t[0], whole[0] + at_u[0]],
        [whole[1] + at_s[1], whole[1] + at_u[1]],
        [whole[2] + at_u[2], whole[2] + at_t[1]],
    ]
    for got, mine in zip(by_turn(EXACT, episodes), want, strict=True):
        close(got, mine)
    halved = by_turn(AnchorGroups(eps=0.0, step_coef=0.5), episodes)
    close(halved[0], [whole[0] + 0.5 * a for a in (at_s[0], at_t[0], at_u[0])])


def test_gigpo_tells_a_loop_from_a_way_on() -> None:
    """One walk stays in S once before it goes on; both reach the goal. Both visits of S are in its group."""
    (straight, _), (loop, on, _) = by_turn(EXACT, [walk(0, "ST", 1.0), walk(1, "SST", 1.0)])
    close([straight, loop, on], z([0.95, 0.9025, 0.95]))
    assert loop < 0 < on == straight


def test_gigpo_statistics_over_turns() -> None:
    """verl-agent: every turn carries the return of its episode, so the longer one is in the mean three times."""
    episodes = [walk(0, "abc", 1.0), walk(1, "d", 0.0)]  # no state recurs
    close(flat(EXACT, episodes), [*[z([1.0, 0.0])[0]] * 3, z([1.0, 0.0])[1]])
    close(flat(AnchorGroups(over="turn", eps=0.0), episodes), z([1.0, 1.0, 1.0, 0.0]))


def test_gigpo_without_a_division_and_with_what_is_alone() -> None:
    """mean_norm: (R − mean) + ω (g − mean). Alone in its group: A^E = 0, or raw as in verl-agent; A^S is 0 in both."""
    episodes = [walk(0, "S", 1.0), walk(1, "ST", 0.0), walk(2, "S", 3.0, "h")]
    assert by_turn(AnchorGroups(normalise="mean"), episodes) == [[1.0], [-1.0, -0.5], [0.0]]
    for normalise in ("mean", "std"):
        assert by_turn(AnchorGroups(alone="raw", normalise=normalise), episodes)[2] == [3.0]


def test_gigpo_rewards_of_turns() -> None:
    """A turn is paid for what comes after it: .5 on the first and 1 at the end, in an episode that itself has 2."""
    batch = packed([played(0, [Step("a", 0.5), Step("b"), Step("c", 1.0)], 2.0)])
    close(turn_return(batch, 0.5).tolist(), [0.5 + 0.25 * 3, 0.5 * 3, 3.0])
    assert batch.reward_E.tolist() == [3.5]


def test_gigpo_failed_and_unused() -> None:
    """A failed walk and one of no use change nothing, whatever they were paid; a baseline is compared."""
    two = [walk(0, "S", 1.0), walk(1, "ST", 0.0)]
    failed = walk(2, "SS", 5.0, status=Status.ENV_ERROR)
    unused = walk(3, "S", 5.0, use=Use.NONE)
    got = by_turn(EXACT, [*two, failed, unused])
    assert got[:2] == by_turn(EXACT, two) and got[2] == [0.0, 0.0] and got[3] == [0.0]
    base = by_turn(EXACT, [*two, walk(4, "S", 1.0, use=Use.BASELINE)])
    close(base[0], [z([1.0, 0.0, 1.0])[0] + z([1.0, 0.0, 1.0])[0]])


def test_gigpo_of_tasks_is_apart() -> None:
    """The same state in another task is another anchor."""
    episodes = [walk(0, "S", 1.0), walk(1, "T", 1.0), walk(2, "S", 0.0, "h"), walk(3, "T", 0.0, "h")]
    assert by_turn(EXACT, episodes) == [[0.0]] * 4


def test_gigpo_turns_without_tokens() -> None:
    """A turn that says nothing is in its group, and what it is paid is in the returns before it."""
    episodes = [played(0, [Step("S"), Step("T", 1.0, tokens=0)]), walk(1, "ST", 0.0)]
    (first, silent), (_, last) = by_turn(EXACT, episodes)
    close([first, last], [z([1.0, 0.0])[0] + z([0.95, 0.0])[0], z([1.0, 0.0])[1] + z([1.0, 0.0])[1]])
    assert math.isnan(silent)


def test_gigpo_without_an_environment() -> None:
    """Answers of one turn begin at the task: A^S = A^E. Without states, later turns have nothing to compare with."""
    rewards = [1.0, 0.0, 0.0, 1.0]
    plain = flat(GroupNormalised(), group(rewards))
    close(flat(AnchorGroups(), group(rewards)), [2 * a for a in plain])
    steps = [played(i, [Step(), Step()], r) for i, r in enumerate((1.0, 0.0))]
    (_, second), _ = by_turn(EXACT, steps)
    close(second, z([1.0, 0.0])[0])
    batch = packed(steps)
    assert stateless_K(batch).tolist() == [True] * 4
    assert (
        len(set(anchor_K(batch).tolist())) == 3
        and anchor_K(packed([walk(0, "S", 1.0)])).tolist() == packed([walk(1, "S", 1.0)]).state_K.tolist()
    )


def test_gigpo_compares_every_agent_with_itself() -> None:
    """Two seats of a zero-sum game begin in states of the same name; the outcome lies on the last turn of each."""

    def game(uid: int, outcome: float) -> Episode:
        first, second = Step("S", outcome, agent="first"), Step("S", -outcome, agent="second")
        return played(uid, [Step("S", agent="first"), second, first])

    episodes = [game(0, 1.0), game(1, -1.0)]
    batch = packed(episodes)
    assert batch.reward_E.tolist() == [0.0, 0.0] and seat_return(batch).tolist() == [1, -1, 1, -1, 1, -1]
    early, late = z([0.95, 1.0, -0.95, -1.0])[:2]
    whole = z([1.0, -1.0])[0]
    got = by_turn(EXACT, episodes)
    close(got[0], [whole + early, -2 * whole, whole + late])
    close(got[1], [-a for a in got[0]])
