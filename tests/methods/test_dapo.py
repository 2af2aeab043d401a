"""Evidence for dapo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import evidence
from hand import by_episode, objective
from six_answers import LENGTHS, LOGP, OLD, REWARDS, T, clip_term, close, group_advantages, hand_batch

from gruppo.methods import method
from gruppo.stages.objective import ClippedSurrogate

test_laws = evidence.laws("dapo")
test_asks = evidence.asks("dapo")
test_terms = evidence.terms("dapo")
test_equivalences = evidence.equivalences("dapo")
test_resume = evidence.resume("dapo")


def test_dapo() -> None:
    """DAPO (arXiv:2503.14476): 1/Σ T_i Σ_i Σ_t PPOclip(r, A_i), ε_lo = .2, ε_hi = .28; shaped rewards."""
    shaped = [1.0, 0.0, -0.5, 1.0, 0.25, 0.0]
    adv = group_advantages(shaped)
    value, slope = 0.0, []
    for lps, olds, a in zip(by_episode(LOGP, LENGTHS), by_episode(OLD, LENGTHS), adv, strict=True):
        for lp, old in zip(lps, olds, strict=True):
            v, dv = clip_term(lp, old, a, 0.2, 0.28)
            value += v / T
            slope.append(dv / T)
    got, slopes = objective(method("dapo"), hand_batch(shaped), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_dapo_dual_clip() -> None:
    """Where A < 0, max(PPOclip, cA) (arXiv:1912.09729); verl's DAPO has c = 10, here it is 1.3 so that it binds."""
    adv, c = group_advantages(REWARDS), 1.3
    value, slope, bound = 0.0, [], 0
    for lps, olds, a in zip(by_episode(LOGP, LENGTHS), by_episode(OLD, LENGTHS), adv, strict=True):
        for lp, old in zip(lps, olds, strict=True):
            v, dv = clip_term(lp, old, a, 0.2, 0.28)
            if a < 0 and v < c * a:
                v, dv, bound = c * a, 0.0, bound + 1
            value += v / T
            slope.append(dv / T)
    assert bound > 0
    dual = method("dapo").but(objective=ClippedSurrogate(clip_low=0.2, clip_high=0.28, clip_dual=c, mean="token"))
    got, slopes = objective(dual, hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)
