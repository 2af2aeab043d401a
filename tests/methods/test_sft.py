"""Evidence for sft: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import evidence
from hand import objective
from pairs_by_hand import LOGP, close, hand_batch

from gruppo.data import Source
from gruppo.methods import method

test_laws = evidence.laws("sft")
test_asks = evidence.asks("sft")
test_terms = evidence.terms("sft")
test_planted_mistakes = evidence.planted("sft")
test_equivalences = evidence.equivalences("sft")
test_resume = evidence.resume("sft")


def test_sft() -> None:
    """B18: minus the mean over all completion tokens; whoever wrote them."""
    for author in (Source.EXPERT, Source.POLICY):
        value, slopes = objective(method("sft"), hand_batch(author), logp_N=LOGP)
        close(value, sum(LOGP) / 10)
        close(slopes["logp_N"], [0.1] * 10)
