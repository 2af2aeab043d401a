"""Evidence for drmas: laws, mistakes, equivalences, resume, and numbers worked by hand on several agents."""

import math

import evidence
from hand import close, group, mean, sample_std
from turn_by_turn import Step, by_turn, flat, played, z

from gruppo.data import Episode, Status
from gruppo.methods import method
from gruppo.methods.drmas import AgentNormalised
from gruppo.stages.credit import GroupNormalised

test_laws = evidence.laws("drmas")
test_asks = evidence.asks("drmas")
test_terms = evidence.terms("drmas")
test_planted_mistakes = evidence.planted("drmas")
test_equivalences = evidence.equivalences("drmas")
test_resume = evidence.resume("drmas")

EXACT = AgentNormalised(eps=0.0)


def solved(uid: int, reward: float, verified: bool, name: str = "g") -> Episode:
    steps = [Step(agent="solver")] + [Step(agent="verifier")] * verified
    return played(uid, steps, reward, name)


def test_drmas_card() -> None:
    """Card S034: the mean reward of eight is .75; the verifier is asked in three, with rewards 0, 0 and 1. GRPO gives
    it a negative advantage on average; here its own mean is 0."""
    rewards, asked = [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [True] * 3 + [False] * 5
    episodes = [solved(i, r, v) for i, (r, v) in enumerate(zip(rewards, asked, strict=True))]
    got = by_turn(EXACT, episodes)
    close([turns[0] for turns in got], z(rewards))
    close([turns[1] for turns in got[:3]], z([0.0, 0.0, 1.0]))
    assert mean([turns[1] for turns in by_turn(GroupNormalised(), episodes)[:3]]) < -0.5


def test_drmas_every_agent_has_mean_0_and_deviation_1() -> None:
    """Card: also where one agent is paid in hundreds, the other in tenths. An agent that acts twice counts twice."""

    def both(uid: int, small: float, large: float, twice: bool) -> Episode:
        return played(uid, [Step(agent="a"), *[Step(agent="b")] * twice, Step("", large, agent="b"),
                            Step("", small, agent="a")])  # fmt: skip

    episodes = [both(0, 0.1, 300.0, True), both(1, 0.4, 100.0, False), both(2, 0.2, 0.0, True)]
    got = by_turn(EXACT, episodes)
    by_agent: dict[str, list[float]] = {"a": [], "b": []}
    for e, turns in zip(episodes, got, strict=True):
        for t, a in zip(e.turns, turns, strict=True):
            by_agent[t.agent].append(a)
    for found in by_agent.values():
        close([mean(found), sample_std(found)], [0.0, 1.0], 1e-9)
    close(by_agent["b"], z([300.0, 300.0, 100.0, 0.0, 0.0]))


def test_drmas_a_penalty_is_that_of_its_turn() -> None:
    """Episodes are worth 1 and 0; the first turn of the first was invalid, −.1. The code: .9, 1, 0, 0. With
    extras=agent, .9, .9, 0, 0."""
    first = played(0, [Step(extra=-0.1), Step("", 1.0)])
    episodes = [first, played(1, [Step(), Step("", 0.0)])]
    close(flat(EXACT, episodes), z([0.9, 1.0, 0.0, 0.0]))
    close(flat(AgentNormalised(extras="agent", eps=0.0), episodes), z([0.9, 0.9, 0.0, 0.0]))
    of_another = [played(0, [Step(extra=-0.1, agent="a"), Step("", 1.0, agent="b")]), solved(1, 0.0, False)]
    close(by_turn(AgentNormalised(normalise="mean"), of_another)[0], [0.0, 0.0])
    no_task = [played(i, [Step(extra=x), Step(extra=y)]) for i, (x, y) in enumerate(((1.0, 0.0), (0.0, 0.5)))]
    close(flat(EXACT, no_task), z([1.0, 0.0, 0.0, 0.5]))


def test_drmas_without_a_division_and_alone() -> None:
    """The verifier acts in one episode of the group: 0, or its raw return."""
    episodes = [solved(0, 3.0, True), solved(1, 1.0, False)]
    assert by_turn(AgentNormalised(normalise="mean"), episodes) == [[1.0, 0.0], [-1.0]]
    raw = by_turn(AgentNormalised(normalise="mean", alone="raw"), episodes)
    assert raw == [[1.0, 3.0], [-1.0]]
    assert flat(EXACT, [solved(0, 3.0, True)]) == [0.0, 0.0]
    assert flat(AgentNormalised(alone="raw"), [solved(0, 3.0, False)]) == [3.0]


def test_drmas_of_a_game() -> None:
    """Zero-sum: the return of the episode is 0, that of a seat ±1. A scripted rival has statistics of its own."""

    def game(uid: int, outcome: float) -> Episode:
        return played(uid, [Step("", outcome, agent="x"), Step("", -outcome, agent="o")])

    got = by_turn(EXACT, [game(0, 1.0), game(1, -1.0), game(2, 1.0)])
    close([t[0] for t in got], z([1.0, -1.0, 1.0]))
    close([t[1] for t in got], z([-1.0, 1.0, -1.0]))
    assert flat(GroupNormalised(), [game(0, 1.0), game(1, -1.0)]) == [0.0] * 4


def test_drmas_failed_and_silent() -> None:
    two = [solved(0, 1.0, True), solved(1, 0.0, True)]
    failed = played(2, [Step(agent="solver", reward=9.0)], status=Status.TIMEOUT)
    assert by_turn(EXACT, [*two, failed]) == [*by_turn(EXACT, two), [0.0]]
    quiet = [played(0, [Step(tokens=0, agent="a"), Step(agent="a")], 1.0), played(1, [Step(agent="a")], 0.0)]
    (nothing, good), (bad,) = by_turn(EXACT, quiet)
    close([good, bad], z([1.0, 1.0, 0.0])[1:])
    assert math.isnan(nothing)


def test_drmas_of_one_agent_and_one_turn_is_grpo() -> None:
    rewards = [1.0, 0.0, 0.0, 0.5]
    assert flat(AgentNormalised(), group(rewards)) == flat(GroupNormalised(), group(rewards))
    assert method("drmas").penalties == ()
