"""Evidence for rlvmr: laws, mistakes, equivalences, resume, and numbers worked by hand."""

from typing import Any

import evidence
import pytest
from dialogues import dialogue
from hand import batch_of, close

from gruppo.data import Episode, Status
from gruppo.methods import method
from gruppo.methods.rlvmr import MetaReasoning, TrajectoryAndTags
from gruppo.stages import Context
from gruppo.stages.reward import InvalidActions, add_components

test_laws = evidence.laws("rlvmr")
test_asks = evidence.asks("rlvmr")
test_terms = evidence.terms("rlvmr")
test_planted_mistakes = evidence.planted("rlvmr")
test_equivalences = evidence.equivalences("rlvmr")
test_resume = evidence.resume("rlvmr")


def turn(tag: str = "", action: str = "", flags: str = "", **fields: Any) -> dict[str, Any]:
    return {"tag": tag, "action_key": action, "flags": frozenset(flags.split()), **fields}


def meta(e: Episode, **fields: Any) -> list[float]:
    [values] = MetaReasoning(**fields)(Context(), [e])["meta"]
    return values


def credited(episodes: list[Episode], **fields: Any) -> list[list[float]]:
    """The advantage of each turn (of one token), by episode, after the rewards of the method."""
    add_components(Context(), method("rlvmr").reward, episodes)
    adv = TrajectoryAndTags(**fields)(Context(), batch_of(episodes))["adv_N"].tolist()
    return [[adv.pop(0) for t in e.turns if t.stop > t.start] for e in episodes]


def near(found: list[list[float]], want: list[list[float]]) -> None:
    assert [len(x) for x in found] == [len(x) for x in want]
    close([v for x in found for v in x], [v for x in want for v in x], 1e-5)


def test_rlvmr_card() -> None:
    """Card S196: explore rewards (1, 1, 0, 0) are ±.866, R = (1, 0) is ±.707; an exploring turn with 1 in the winner
    has .787 by the paper, 1.573 by the released code."""
    lost = [turn("planning", "x", "invalid"), turn("explore", "c"), turn("explore", "c"), turn("explore", "c")]
    won = [turn("explore", "a"), turn("", "b")]
    four = [dialogue(0, won, 1.0), dialogue(1, lost, 0.1)]  # 0.1 pays for the invalid action: R = (1, 0)
    found = credited(four)
    assert [t.reward["meta"] for e in four for t in e.turns] == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert found[0][0] == pytest.approx(0.787, abs=5e-4)
    again = [dialogue(0, won, 1.0), dialogue(1, lost, 0.1)]
    assert credited(again, traj_coef=1.0, meta_coef=1.0)[0][0] == pytest.approx(1.573, abs=5e-4)


def test_rlvmr_rules() -> None:
    """Planning is paid where the episode succeeds, exploring for a new action, reflecting for another action after an
    invalid one; monitor, another tag and none never."""
    plans = [turn("planning", "a"), turn("monitor", "b"), turn("", "c"), turn("plan", "d")]
    assert meta(dialogue(0, plans, 1.0)) == [1.0, 0.0, 0.0, 0.0]
    assert meta(dialogue(0, plans, 0.0)) == [0.0] * 4
    explores = [turn("explore", a, f) for a, f in (("a", ""), ("a", ""), ("b", "invalid"), ("b", ""), ("c", "void"))]
    assert meta(dialogue(0, explores, 0.0)) == [1.0, 0.0, 0.0, 1.0, 0.0], "an invalid try was not taken"
    r = "reflection"
    turns = [turn(r, "a"), turn(r, "b"), turn("", "c", "invalid"), turn(r, "c"), turn("", "d", "void"), turn(r, "e")]
    assert meta(dialogue(0, turns, 0.0)) == [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def test_rlvmr_new_places() -> None:
    """The state after the action is one that the episode was not in; a state that nobody told is no place."""
    turns = [turn("explore", "a", state=s) for s in ("hall", "attic", "hall", "hall")]
    assert meta(dialogue(0, turns, 0.0, final_state="cellar"), new="place") == [1.0, 0.0, 0.0, 1.0]
    assert meta(dialogue(0, turns, 0.0), new="place") == [1.0, 0.0, 0.0, 0.0]


def test_rlvmr_actions_without_a_key_are_their_text() -> None:
    turns = [turn("explore", text=x) for x in ("go", "go", "look")]
    assert meta(dialogue(0, turns, 0.0)) == [1.0, 0.0, 1.0]


def test_rlvmr_meta_is_recorded_and_not_paid() -> None:
    """The return is that of the task, less 0.1 for each invalid action; a score on a turn is success, too."""
    e = dialogue(0, [turn("planning", "a"), turn("", "b", "invalid", reward={"task": 1.0})], None)
    add_components(Context(), method("rlvmr").reward, [e])
    assert [t.reward.get("meta") for t in e.turns] == [1.0, 0.0]
    assert e.total == pytest.approx(0.9) and batch_of([e]).reward_E.tolist() == pytest.approx([0.9])
    assert InvalidActions(0.3)(Context(), [e])["invalid"] == [[0.0, -0.3]]


def test_rlvmr_tags_are_compared_with_their_own_kind_in_their_own_group() -> None:
    """Planning (1, 0) of two episodes: ±.707; a lone explorer: 0, or its raw 1; another group changes nothing."""

    def group(name: str, first: int) -> list[Episode]:
        return [
            dialogue(first, [turn("planning", "a"), turn("explore", "b")], 1.0, name),
            dialogue(first + 1, [turn("planning", "a"), turn("monitor", "b")], 0.0, name),
        ]

    near(credited(group("g", 0), traj_coef=0.0), [[0.35355, 0.0], [-0.35355, 0.0]])
    near(credited(group("g", 0), traj_coef=0.0, alone="raw"), [[0.35355, 0.5], [-0.35355, 0.0]])
    near(credited([*group("g", 0), *group("h", 2)], traj_coef=0.0)[:2], [[0.35355, 0.0], [-0.35355, 0.0]])


def test_rlvmr_statistics_over_turns() -> None:
    """R = (1, 0) over episodes is ±.707; over turns it is (1, 1, 1, 0): ±, with mean .75 and deviation .5."""

    def two() -> list[Episode]:
        return [dialogue(0, [1, 1, 1], 1.0), dialogue(1, [1], 0.0)]

    near(credited(two(), traj_coef=1.0), [[0.70711] * 3, [-0.70711]])
    near(credited(two(), traj_coef=1.0, over="turn"), [[0.5] * 3, [-1.5]])


def test_rlvmr_edges() -> None:
    """One turn, one episode, a failed one, a turn without tokens, and no `meta` at all."""
    assert credited([dialogue(0, [turn("planning")], 1.0)]) == [[0.0]]
    both = [dialogue(i, [turn("planning")], r) for i, r in enumerate((1.0, 0.0))]
    near(credited(both), [[0.70711], [-0.70711]])
    lost = dialogue(2, [turn("planning"), turn("planning")], None, status=Status.TIMEOUT)
    again = [dialogue(i, [turn("planning")], r) for i, r in enumerate((1.0, 0.0))]
    near(credited([*again, lost]), [[0.70711], [-0.70711], [0.0, 0.0]])
    silent = [dialogue(i, [turn("planning", tokens=0), turn("")], r) for i, r in enumerate((1.0, 0.0))]
    near(credited(silent), [[0.35355], [-0.35355]])
    plain = batch_of([dialogue(0, [1, 1], 1.0), dialogue(1, [1], 0.0)])
    close(TrajectoryAndTags()(Context(), plain)["adv_N"].tolist(), [0.35355, 0.35355, -0.35355], 1e-5)
