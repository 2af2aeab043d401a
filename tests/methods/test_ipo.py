"""Evidence for ipo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import evidence
from hand import objective
from pairs_by_hand import close, hand_batch

from gruppo.methods import method
from gruppo.methods.ipo import IdentityPreference

test_laws = evidence.laws("ipo")
test_asks = evidence.asks("ipo")
test_terms = evidence.terms("ipo")
test_equivalences = evidence.equivalences("ipo")
test_resume = evidence.resume("ipo")


def test_ipo_card() -> None:
    """B15: h = 3 and β = .1, so the target is 5 and L = 4. Here the means: 2 for y_w and −1 for y_l."""
    logp = [-3.0, -5.0, -4.0, -4.0, -5.0]  # means of the log-ratios: (2 + 2)/2, (−1 − 1 − 1)/3
    value, slopes = objective(method("ipo"), hand_batch(rows=2), logp_N=logp)
    close(-value, 4.0)
    close(slopes["logp_N"], [4.0 / 2] * 2 + [-4.0 / 3] * 3)  # −2 (h − 5) over the length


def test_ipo_turns_round_past_its_target() -> None:
    """β = .5 has the target 1: at h = 3 the better answer is pushed down again."""
    logp = [-3.0, -5.0, -4.0, -4.0, -5.0]
    past = method("ipo").but(objective=IdentityPreference(beta=0.5))
    value, slopes = objective(past, hand_batch(rows=2), logp_N=logp)
    close(-value, 4.0)
    assert slopes["logp_N"][0] < 0 < slopes["logp_N"][4]
