"""Evidence for grpo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
from hand import by_episode, objective
from six_answers import LENGTHS, LOGP, OLD, REF, REWARDS, clip_term, close, group_advantages, hand_batch

from gruppo.methods import method

test_laws = evidence.laws("grpo")
test_asks = evidence.asks("grpo")
test_terms = evidence.terms("grpo")
test_planted_mistakes = evidence.planted("grpo")
test_equivalences = evidence.equivalences("grpo")
test_resume = evidence.resume("grpo")


def test_grpo() -> None:
    """GRPO (arXiv:2402.03300): J = mean over q of 1/G Σ_i 1/T_i Σ_t [PPOclip(r, A_i) − β k3], β = .04, ε = .2.

    d k3/dlog π = 1 − e^d, d = log π_ref − log π
    """
    adv, beta = group_advantages(REWARDS), 0.04
    value, slope = 0.0, []
    for lps, olds, refs, a in zip(*(by_episode(x, LENGTHS) for x in (LOGP, OLD, REF)), adv, strict=True):
        for lp, old, ref in zip(lps, olds, refs, strict=True):
            v, dv = clip_term(lp, old, a, 0.2, 0.2)
            d = ref - lp
            k3, dk3 = math.exp(d) - d - 1, 1 - math.exp(d)
            value += (v - beta * k3) / len(lps) / 3 / 2  # tokens, answers of a group, groups
            slope.append((dv - beta * dk3) / len(lps) / 3 / 2)
    got, slopes = objective(method("grpo"), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)
