"""Evidence for reinforce_pp_baseline: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
from hand import close, objective
from six_answers import LOGP, REF
from six_graded import T, centred, clipped_by_loops, each_token, hand_batch, whitened

from gruppo.methods import method

test_laws = evidence.laws("reinforce_pp_baseline")
test_asks = evidence.asks("reinforce_pp_baseline")
test_terms = evidence.terms("reinforce_pp_baseline")
test_planted_mistakes = evidence.planted("reinforce_pp_baseline")
test_equivalences = evidence.equivalences("reinforce_pp_baseline")
test_resume = evidence.resume("reinforce_pp_baseline")


def test_reinforce_pp_baseline() -> None:
    """REINFORCE++-baseline (arXiv:2501.03262): token mean of PPOclip(r, whiten(R − group mean)) − β k2, β = .001."""
    value, slope = clipped_by_loops(whitened(each_token(centred())), [1 / T] * T)
    value -= math.fsum(0.001 * 0.5 * (lp - ref) ** 2 / T for lp, ref in zip(LOGP, REF, strict=True))
    slope = [s - 0.001 * (lp - ref) / T for s, lp, ref in zip(slope, LOGP, REF, strict=True)]
    got, slopes = objective(method("reinforce_pp_baseline"), hand_batch(), logp_N=LOGP)
    close(got, value, 1e-10)
    close(slopes["logp_N"], slope, 1e-10)
