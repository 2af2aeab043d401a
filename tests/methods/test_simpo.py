"""Evidence for simpo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import evidence
from hand import objective
from pairs_by_hand import close, hand_batch, sigma

from gruppo.methods import method

test_laws = evidence.laws("simpo")
test_asks = evidence.asks("simpo")
test_terms = evidence.terms("simpo")
test_equivalences = evidence.equivalences("simpo")
test_resume = evidence.resume("simpo")


def test_simpo() -> None:
    """No card. r = β/|y| Σ log π: at β = 2 and γ = 1, means −.5 and −1.5 give log σ(2 · 1 − 1) = −.31326."""
    value, slopes = objective(method("simpo"), hand_batch(rows=2), logp_N=[-0.4, -0.6, -1.0, -1.5, -2.0])
    close(-value, 0.31326, 1e-5)
    close(slopes["logp_N"], [2 * sigma(-1.0) / 2] * 2 + [-2 * sigma(-1.0) / 3] * 3)
