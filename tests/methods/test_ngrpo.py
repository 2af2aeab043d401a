"""Evidence for ngrpo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import pytest
from hand import FAILED, answer, batch_of, close, column, group, mean, sample_std
from small_batches import adv
from small_batches import group as one_token_each

from gruppo.data import Use
from gruppo.methods import method
from gruppo.methods.ngrpo import DropSolvedGroups, VirtualBest
from gruppo.stages import Context

test_laws = evidence.laws("ngrpo")
test_asks = evidence.asks("ngrpo")
test_planted_mistakes = evidence.planted("ngrpo")
test_equivalences = evidence.equivalences("ngrpo")
test_resume = evidence.resume("ngrpo")


def test_ngrpo_all_wrong() -> None:
    """Card: eight answers of 0 and one virtual 1: mean 1/9, deviation 1/3, A = −1/3 each."""
    close(adv(VirtualBest(eps=0.0), group([0.0] * 8)), [-1 / 3] * 8)
    close(adv(VirtualBest(), group([0.0] * 8)), [-1 / 9 / (1 / 3 + 1e-6)] * 8)


def test_ngrpo_one_right_of_eight() -> None:
    """Card: +1.764 and −0.504, where GRPO has +2.475 and −0.354."""
    got = adv(VirtualBest(), group([1.0] + [0.0] * 7))
    assert [round(a, 3) for a in got] == [1.764] + [-0.504] * 7
    grpo = adv(method("grpo").credit, group([1.0] + [0.0] * 7))
    assert [round(a, 3) for a in grpo[:2]] == [2.475, -0.354]


@pytest.mark.parametrize("copies", [1, 3])
def test_ngrpo_by_hand(copies: int) -> None:
    rewards, top = [0.2, 0.9, 0.4], 1.5
    seen = [*rewards, *[top] * copies]
    want = [(r - mean(seen)) / (sample_std(seen) + 1e-6) for r in rewards]
    close(adv(VirtualBest(top_reward=top, copies=copies), group(rewards)), want)


def test_ngrpo_edges() -> None:
    """All right: exactly 0, also at a highest reward that is rounded. One alone: by the rule. Failed: out. No copy:
    GRPO, and equal rewards are exactly 0."""
    assert adv(VirtualBest(top_reward=0.7), group([0.7] * 3)) == [0.0] * 3
    assert adv(VirtualBest(copies=0), group([0.7] * 3)) == [0.0] * 3
    close(adv(VirtualBest(eps=0.0), group([0.0])), [-math.sqrt(0.5)])
    assert adv(VirtualBest(), group([1.0])) == [0.0]
    with_failure = [*group([0.0] * 8), answer(8, "g", 1, 1.0, **FAILED), answer(9, "h", 1, None, **FAILED)]
    close(adv(VirtualBest(eps=0.0), with_failure), [-1 / 3] * 8 + [0.0, 0.0])
    ragged = [*group([0.0] * 8), *group([0.0], name="h", first=8)]
    close(adv(VirtualBest(eps=0.0), ragged), [-1 / 3] * 8 + [-math.sqrt(0.5)])
    with pytest.raises(ValueError, match="copies=-1"):
        VirtualBest(copies=-1)


def test_ngrpo_drops_what_is_solved() -> None:
    """By the task's reward, not by the shaped sum; a failed answer and one apart say nothing."""
    a, b, c = group([1.0, 1.0], name="a"), group([1.0, 0.0], name="b", first=2), group([0.0, 0.0], name="c", first=4)
    a[0].reward["overlong"] = -0.5
    more = [answer(6, "a", 1, 0.0, **FAILED), answer(7, "a", 1, 0.0, use=Use.APART), answer(8, "d", 1, None, **FAILED)]
    keep, again = DropSolvedGroups().episodes(Context(), [*a, *b, *c, *more])
    assert keep == [False, False, True, True, True, True, False, False, True] and again == []


@pytest.mark.parametrize("copies", [0, 1, 3])
def test_ngrpo_of_a_group_that_is_all_right(copies: int) -> None:
    """Nothing lies between the answers and the virtual ones: A = 0, also where nothing is added to the deviation."""
    batch = batch_of(
        [*one_token_each([1.0, 1.0], "a"), *one_token_each([1.0], "b", 2), *one_token_each([None], "c", 3, **FAILED)]
    )
    assert column(VirtualBest(copies=copies, eps=0.0)(Context(), batch)["adv_N"]) == [0.0] * 4
