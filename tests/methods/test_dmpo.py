"""Evidence for dmpo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import pytest
from hand import batch_of, by_episode, column, mean, objective, worked
from six_answers import (
    DMPO,
    LENGTHS,
    LOGP,
    OLD,
    REWARDS,
    B,
    clip_term,
    close,
    group_advantages,
    hand_batch,
    members,
    of_one_token,
)
from small_batches import group, term_of

from gruppo.data import Use
from gruppo.methods import method
from gruppo.methods.dmpo import MatchDistribution
from gruppo.stages import Method

test_laws = evidence.laws("dmpo")
test_asks = evidence.asks("dmpo")
test_planted_mistakes = evidence.planted("dmpo")
test_equivalences = evidence.equivalences("dmpo")
test_resume = evidence.resume("dmpo")


def matched(match: MatchDistribution) -> Method:
    """GRPO's surrogate and this matching."""
    return DMPO.but(objective=(*method("grpo").objective, match))


@pytest.mark.parametrize(("alpha", "first", "rest"), [(1.0, 0.475, 0.175), (0.5, 0.711, 0.096), (1 / 15, 1.0, 0.0)])
def test_dmpo_card(alpha: float, first: float, rest: float) -> None:
    """Card S016: rewards (1, 0, 0, 0): p = (.475, .175, .175, .175) at α = 1, (.711, .096, …) at ½, one-hot at 1/15.
    With equal log π q is ¼ each, so that the distances tell p."""
    batch = of_one_token([1.0, 0.0, 0.0, 0.0])
    match = worked(MatchDistribution(target_temperature=alpha), batch, logp_N=[-1.0] * 4)["match"]
    gap = [math.sqrt(-x) for x in column(match.value)]
    assert [0.25 + gap[0], *(0.25 - g for g in gap[1:])] == pytest.approx([first, rest, rest, rest], abs=6e-4)


def dmpo_by_hand(rewards: list[float], alpha: float) -> tuple[float, list[float]]:
    """−1/2 Σ_g 1/3 Σ_i (p − q)², and its slope −(2/3) q_i [(q_i − p_i) − Σ q (q − p)] / 2 / T_i."""
    value, slope = 0.0, []
    score = [mean(lps) for lps in by_episode(LOGP, LENGTHS)]
    for i in range(B):
        mine = members(i)
        p = {j: math.exp(rewards[j] / alpha) for j in mine}
        q = {j: math.exp(score[j]) for j in mine}
        p, q = ({j: x / math.fsum(d.values()) for j, x in d.items()} for d in (p, q))
        value -= (p[i] - q[i]) ** 2 / 3 / 2
        pull = (q[i] - p[i]) - sum(q[j] * (q[j] - p[j]) for j in mine)
        slope += [-2 / 3 * q[i] * pull / 2 / LENGTHS[i]] * LENGTHS[i]
    return value, slope


def test_dmpo() -> None:
    """GRPO's part and λ = 3 times the matching, α = ½."""
    value, slope = dmpo_by_hand(REWARDS, 0.5)
    value, slope = 3 * value, [3 * x for x in slope]
    at = 0
    for lps, olds, a in zip(
        by_episode(LOGP, LENGTHS), by_episode(OLD, LENGTHS), group_advantages(REWARDS), strict=True
    ):
        for lp, old in zip(lps, olds, strict=True):
            v, dv = clip_term(lp, old, a, 0.2, 0.2)
            value, slope[at], at = value + v / len(lps) / B, slope[at] + dv / len(lps) / B, at + 1
    got, slopes = objective(matched(MatchDistribution(3.0, 0.5)), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_dmpo_edges() -> None:
    """p = q: nothing. A group of one, and one that failed but for one: p = q = 1. Equal rewards: drawn to equal log π,
    unless equal_groups is off."""
    alike = objective(matched(MatchDistribution(1.0, 1.0)), of_one_token([1.0, 1.0]), logp_N=[-2.0, -2.0])
    assert alike[1]["logp_N"] == [0.0, 0.0]
    for rewards in ([1.0], [1.0, None]):
        value, slope = objective(DMPO, of_one_token(rewards), logp_N=[-2.0] * len(rewards))
        assert value == pytest.approx(0) and slope["logp_N"] == pytest.approx([0.0] * len(rewards))
    _, slope = objective(DMPO, of_one_token([1.0, 1.0]), logp_N=[-2.0, -0.5])
    assert slope["logp_N"][0] > 0 > slope["logp_N"][1]
    off = matched(MatchDistribution(equal_groups=False))
    assert objective(off, of_one_token([1.0, 1.0]), logp_N=[-2.0, -0.5])[1]["logp_N"] == [0.0, 0.0]


def test_dmpo_covers_two_equal_answers() -> None:
    """Card S016: of two equally good answers GRPO pushes both alike; the matching draws the likelier one back."""
    batch, logp = of_one_token([1.0, 1.0, 0.0]), [-2.0, -0.5, -6.0]
    slope, plain = (objective(matched(MatchDistribution(c)), batch, logp_N=logp)[1]["logp_N"] for c in (2.0, 0.0))
    assert slope[0] - plain[0] > 0 > slope[1] - plain[1]


def test_dmpo_refuses() -> None:
    with pytest.raises(ValueError, match=r"target_temperature=0\.0 .*> 0"):
        MatchDistribution(target_temperature=0.0)


def test_dmpo_equal_groups_are_those_of_judged_answers() -> None:
    """(1, 0) varies. (1, 1) does not, whatever an answer apart is worth."""
    episodes = [*group([1.0, 0.0], "a"), *group([1.0, 1.0], "b", 2), *group([0.0], "b", 4, use=Use.APART)]
    batch = batch_of(episodes, adv_N=[0.0] * 5, logp_old_N=[-1.0] * 5)
    for equal_groups, over in ((False, [1, 1, 0, 0, 0]), (True, [1, 1, 1, 1, 0])):
        found = term_of(MatchDistribution(equal_groups=equal_groups), "match", batch, [-1.0] * 5)
        assert column(found.term.over) == over
