"""Evidence for adora: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import pytest
from hand import FAILED, answer, group
from hand import close as closer
from six_answers import close
from small_batches import adv

from gruppo.data import Status
from gruppo.methods import method
from gruppo.methods.adora import LongerIsRight

test_laws = evidence.laws("adora")
test_asks = evidence.asks("adora")
test_planted_mistakes = evidence.planted("adora")
test_equivalences = evidence.equivalences("adora")
test_resume = evidence.resume("adora")


@pytest.mark.parametrize(("right", "factor"), [(300, 0.1), (800, 1.0), (600, 0.1)])
def test_adora_weighs_a_group(right: int, factor: float) -> None:
    """Card: wrong answers of 500 and 700 tokens, so 600 in the mean; a right one must be longer than that."""
    got = adv(LongerIsRight(), group([1.0, 0.0, 0.0], [right, 500, 700]))
    plain = adv(method("grpo").credit, group([1.0, 0.0, 0.0]))
    closer(got, [factor * a for a in plain])


def test_adora_edges() -> None:
    """No right one: λ; no wrong one: 1; truncated wrong ones are not counted, nor tokens that the policy did not
    write, nor failed answers; the bar itself is not right."""
    shaped = [0.1, 0.3]
    plain = adv(method("grpo").credit, group(shaped))
    closer(adv(LongerIsRight(), group(shaped)), [0.1 * a for a in plain])
    closer(adv(LongerIsRight(threshold=0.05), group(shaped)), plain)
    closer(adv(LongerIsRight(threshold=0.3), group(shaped)), [0.1 * a for a in plain])
    cut = [*group([1.0, 0.0], [3, 2]), answer(2, "g", 9, 0.0, status=Status.TRUNCATED)]
    closer(adv(LongerIsRight(), cut), adv(method("grpo").credit, cut))
    lost = [*group([1.0, 0.0], [3, 2]), answer(2, "g", 9, 0.0, **FAILED)]
    closer(adv(LongerIsRight(), lost), [*adv(method("grpo").credit, lost[:2]), 0.0])
    assert adv(LongerIsRight(), group([0.7] * 3)) == [0.0] * 3 and adv(LongerIsRight(), group([1.0])) == [0.0]


def test_adora_weighs_each_group_alone() -> None:
    two = [*group([1.0, 0.0], [3, 2], "a"), *group([1.0, 0.0], [2, 3], "b", first=2)]
    half = math.sqrt(0.5)
    closer(adv(LongerIsRight(), two), [half, -half, 0.1 * half, -0.1 * half], 1e-5)


def test_adora_at_the_bar() -> None:
    """An answer of exactly 0.5 is wrong: alone with a 0 there is no right one (λ), however long it is; and its length
    is in the mean of the wrong ones, 5 = (9 + 1)/2, which a right one of 3 tokens does not reach (λ)."""
    none, one = group([0.5, 0.0], [9, 1]), group([1.0, 0.5, 0.0], [3, 9, 1])
    for episodes in (none, one):
        close(adv(LongerIsRight(), episodes), [0.1 * a for a in adv(method("grpo").credit, episodes)])


def test_adora_without_a_right_or_a_counted_wrong_answer() -> None:
    """Wrong and truncated only: λ, since there is no right one. Right and truncated only: 1."""
    cut = [answer(i, "g", 2, r, status=Status.TRUNCATED) for i, r in enumerate((0.1, 0.3))]
    close(adv(LongerIsRight(), cut), [0.1 * a for a in adv(method("grpo").credit, cut)])
    right = [answer(2, "g", 1, 1.0), *cut]
    close(adv(LongerIsRight(), right), adv(method("grpo").credit, right))
