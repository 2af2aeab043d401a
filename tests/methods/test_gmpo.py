"""Evidence for gmpo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
from hand import answer, batch_of, mean, objective
from six_answers import ADV, LOGP, OLD, B, answers, close, hand_batch
from small_batches import told, two_answers

from gruppo.methods import method
from gruppo.methods.gmpo import GeometricMean

test_laws = evidence.laws("gmpo")
test_asks = evidence.asks("gmpo")
test_terms = evidence.terms("gmpo")
test_planted_mistakes = evidence.planted("gmpo")
test_equivalences = evidence.equivalences("gmpo")
test_resume = evidence.resume("gmpo")


def test_gmpo_by_hand() -> None:
    """GMPO (arXiv:2507.20673), by hand: log-ratios 1, −1, .1 and A > 0 are clipped to .4, −1, .1: the mean is −1/6.

    With A < 0 they are 1, −.4, .1, the mean is .7/3: a clip never helps."""
    logp, old = [-1.0, -2.0, -0.9, -2.0], [-2.0, -1.0, -1.0, -2.0]
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    for reward, logs, free in ((1.0, [0.4, -1.0, 0.1], [0, 1, 1]), (0.0, [1.0, -0.4, 0.1], [1, 0, 1])):
        batch = batch_of([answer(0, "g", 3, reward), answer(1, "g", 1, 1 - reward)], logp_old_N=old)
        value, slope = objective(method("gmpo"), batch, logp_N=logp)
        adv, s = (a, -a) if reward else (-a, a), math.exp(mean(logs))
        close(value, (s * adv[0] + adv[1]) / 2)
        close(slope["logp_N"], [s * adv[0] * f / 3 / 2 for f in free] + [adv[1] / 2])


def test_gmpo() -> None:
    """The same by loops over the two groups, with clips of e^−.3 and e^.35."""
    value, slope, bound = 0.0, [], 0
    for (lps, olds), a in zip(answers(LOGP, OLD), ADV, strict=True):
        logs = [lp - old for lp, old in zip(lps, olds, strict=True)]
        kept = [min(x, 0.35) if a > 0 else max(x, -0.3) for x in logs]
        s = math.exp(mean(kept))
        value += s * a / B
        slope += [s * a / len(lps) / B if x == k else 0.0 for x, k in zip(logs, kept, strict=True)]
        bound += sum(x != k for x, k in zip(logs, kept, strict=True))
    assert bound >= 2
    got, slopes = objective(method("gmpo").but(objective=GeometricMean(0.3, 0.35)), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_the_share_of_ratios_that_the_geometric_mean_clips() -> None:
    batch = two_answers([1.0, 1.0, -1.0, -1.0], [-9.0] * 4)
    assert told(GeometricMean(), batch, [-8.5, -9.5, -8.5, -9.5], "clip_fraction") == [1.0, 0.0, 0.0, 1.0]
