"""Evidence for kl_cov: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import evidence
from six_answers import close
from small_batches import cov_slopes

from gruppo.methods.kl_cov import KlCovariance

test_laws = evidence.laws("kl_cov")
test_asks = evidence.asks("kl_cov")
test_terms = evidence.terms("kl_cov")
test_planted_mistakes = evidence.planted("kl_cov")
test_equivalences = evidence.equivalences("kl_cov")
test_resume = evidence.resume("kl_cov")


def test_kl_cov_holds_the_largest() -> None:
    """No clip: A r / 4. Those with the largest c pay 3 |log π − log π_old|: first the second token (c = 2.5), which has
    not moved and pays nothing; of three also the third, which has moved up and is pulled back by 3/4."""
    free = [0.5, -0.5, 0.75, 0.0]
    close(cov_slopes(KlCovariance(chosen_share=0.0, trust_coef=3.0)), free)
    close(cov_slopes(KlCovariance(chosen_share=0.25, trust_coef=3.0)), free)
    close(cov_slopes(KlCovariance(chosen_share=0.75, trust_coef=3.0)), [0.5, -0.5, 0.0, 0.0])
