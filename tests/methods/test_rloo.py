"""Evidence for rloo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import evidence
from hand import by_episode, objective
from six_answers import GROUPS, LENGTHS, LOGP, OLD, REF, REWARDS, B, close, hand_batch

from gruppo.methods import method

test_laws = evidence.laws("rloo")
test_asks = evidence.asks("rloo")
test_terms = evidence.terms("rloo")
test_equivalences = evidence.equivalences("rloo")
test_resume = evidence.resume("rloo")


def test_rloo() -> None:
    """RLOO (arXiv:2402.14740): R_i = r_i − β Σ_t (log π_old − log π_ref), A_i = R_i − mean of the others.

    J = 1/B Σ_i A_i Σ_t log π
    """
    beta = 0.03
    olds, refs = by_episode(OLD, LENGTHS), by_episode(REF, LENGTHS)
    total = [r - beta * (sum(o) - sum(f)) for r, o, f in zip(REWARDS, olds, refs, strict=True)]
    value, slope = 0.0, []
    for i, lps in enumerate(by_episode(LOGP, LENGTHS)):
        others = [total[j] for j in range(B) if GROUPS[j] == GROUPS[i] and j != i]
        a = total[i] - sum(others) / 2
        value += a * sum(lps) / B
        slope += [a / B] * len(lps)
    got, slopes = objective(method("rloo"), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)
