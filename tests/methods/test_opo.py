"""Evidence for opo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
from hand import batch_of, by_episode, close, mean, objective
from six_answers import LOGP
from six_graded import GROUPS, LENGTHS, REWARDS, B, adv, each_token, group, hand_batch

from gruppo.methods import method
from gruppo.methods.opo import LengthWeighted

test_laws = evidence.laws("opo")
test_asks = evidence.asks("opo")
test_terms = evidence.terms("opo")
test_planted_mistakes = evidence.planted("opo")
test_equivalences = evidence.equivalences("opo")
test_resume = evidence.resume("opo")


def test_opo_of_two_answers() -> None:
    """By hand: R = (1, 0), lengths 1 and 3: b = (1 · 1 + 3 · 0) / 4 = .25, A = (.75, −.25); Σ_i |o_i| A_i = 0."""
    a = adv(LengthWeighted(), batch_of(group((1.0, 0.0), (1, 3))))
    close(a, [0.75, -0.25, -0.25, -0.25])
    close(sum(a), 0.0)


def test_opo_baseline_has_the_least_variance() -> None:
    """b minimises Σ_i |o_i| (R_i − b)², the variance of the gradient if |∇ log π|² is the length (arXiv:2505.23585)."""
    rewards, lengths = (1.0, 0.3, 0.0, 0.6), (2, 5, 9, 3)
    a = adv(LengthWeighted(), batch_of(group(rewards, lengths)))
    b = rewards[0] - a[0]

    def spread(at: float) -> float:
        return sum(n * (r - at) ** 2 for r, n in zip(rewards, lengths, strict=True))

    assert all(spread(b) < spread(b + step) for step in (-1e-3, 1e-3))
    assert abs(b - mean(rewards)) > 0.01  # and it is not the plain mean


def test_opo() -> None:
    """OPO (arXiv:2505.23585): J = 1/B Σ_i (R_i − b) Σ_t log π, b = Σ |o_j| R_j / Σ |o_j| of the group."""
    a = []
    for i, r in enumerate(REWARDS):
        rows = [j for j in range(B) if GROUPS[j] == GROUPS[i]]
        a.append(r - sum(LENGTHS[j] * REWARDS[j] for j in rows) / sum(LENGTHS[j] for j in rows))
    got, slopes = objective(method("opo"), hand_batch(), logp_N=LOGP)
    close(got, math.fsum(x * sum(lps) / B for x, lps in zip(a, by_episode(LOGP, LENGTHS), strict=True)))
    close(slopes["logp_N"], [x / B for x in each_token(a)])
