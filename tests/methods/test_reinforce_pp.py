"""Evidence for reinforce_pp: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import pytest
from hand import answer, batch_of, by_episode, close, mean, objective, sample_std
from six_answers import LOGP, OLD, REF
from six_graded import LENGTHS, ONE_RIGHT, REWARDS, T, adv, clipped_by_loops, group, hand_batch, whitened

from gruppo.data import Status
from gruppo.methods import method
from gruppo.methods.reinforce_pp import WhitenedReturn
from gruppo.methods.reinforce_pp_baseline import WhitenedCentred

test_laws = evidence.laws("reinforce_pp")
test_asks = evidence.asks("reinforce_pp")
test_terms = evidence.terms("reinforce_pp")
test_planted_mistakes = evidence.planted("reinforce_pp")
test_equivalences = evidence.equivalences("reinforce_pp")
test_resume = evidence.resume("reinforce_pp")


@pytest.mark.parametrize("credit", [WhitenedReturn(), WhitenedCentred()], ids=["plain", "baseline"])
def test_reinforce_pp_of_four_answers(credit: object) -> None:
    """By hand: one token each, R = [1, 0, 0, 0]: mean .25, var .25 → [1.5, −.5, −.5, −.5]; 1e-8 moves it by 3e-8."""
    close(adv(credit, batch_of(group(ONE_RIGHT))), [1.5, -0.5, -0.5, -0.5], 1e-7)


@pytest.mark.parametrize("credit", [WhitenedReturn(), WhitenedCentred()], ids=["plain", "baseline"])
def test_reinforce_pp_is_white(credit: object) -> None:
    """verl masked_whiten: over the tokens the mean is 0 and the variance, with n − 1, is 1."""
    a = adv(credit, hand_batch())
    close(mean(a), 0.0)
    close(sample_std(a), 1.0, 1e-6)


@pytest.mark.parametrize("credit", [WhitenedReturn(), WhitenedCentred()], ids=["plain", "baseline"])
def test_reinforce_pp_edges(credit: object) -> None:
    """A batch of equal rewards: the numerator is 0, so A = 0 exactly. One valid token has no variance: A = 0."""
    assert adv(credit, batch_of([*group((0.7,) * 3, 2), *group((0.7,) * 2, 1, "h", 9)])) == [0.0] * 8
    assert adv(credit, batch_of([answer(1, "g", 1, 1.0)])) == [0.0]
    failed = answer(2, "g", 2, 1.0, status=Status.ENV_ERROR)
    assert adv(credit, batch_of([answer(1, "g", 1, 1.0), failed])) == [0.0] * 3


def test_reinforce_pp_return() -> None:
    """By hand: r_t = 1[t = T] R − β (log π_old − log π_ref)_t, G_t = r_t + γ G_{t+1}; γ = .5, β = .1.

    Answer 1, R = 1, KL (.4, −.2): r = (−.04, 1.02), G = (.47, 1.02). Answer 2, R = 0, KL (.2): G = (−.02).
    """
    batch = batch_of(
        [answer(1, "a", 2, 1.0), answer(2, "b", 1, 0.0)], logp_old_N=[-0.6, -1.2, -0.8], logp_ref_N=[-1.0, -1.0, -1.0]
    )
    close(adv(WhitenedReturn(gamma=0.5, kl_coef=0.1), batch), whitened([0.47, 1.02, -0.02]))


def test_reinforce_pp() -> None:
    """REINFORCE++ (arXiv:2501.03262, verl core_algos): token mean of PPOclip(r, whiten(G)), γ = 1, β = .001."""
    returns: list[float] = []
    for olds, refs, reward in zip(by_episode(OLD, LENGTHS), by_episode(REF, LENGTHS), REWARDS, strict=True):
        kl = [0.001 * (o - f) for o, f in zip(olds, refs, strict=True)]
        returns += [reward - math.fsum(kl[t:]) for t in range(len(kl))]
    value, slope = clipped_by_loops(whitened(returns), [1 / T] * T)
    got, slopes = objective(method("reinforce_pp"), hand_batch(), logp_N=LOGP)
    close(got, value, 1e-10)
    close(slopes["logp_N"], slope, 1e-10)
