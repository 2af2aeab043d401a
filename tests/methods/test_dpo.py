"""Evidence for dpo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import pytest
from hand import by_episode, objective
from pairs_by_hand import LENGTHS, LOGP, REF, close, hand_batch, sigma

from gruppo.data import Source
from gruppo.methods import method
from gruppo.methods.dpo import DirectPreference

test_laws = evidence.laws("dpo")
test_asks = evidence.asks("dpo")
test_terms = evidence.terms("dpo")
test_planted_mistakes = evidence.planted("dpo")
test_equivalences = evidence.equivalences("dpo")
test_resume = evidence.resume("dpo")


PAIRS = [(0, 1), (3, 2)]


def sums(values: list[float]) -> list[float]:
    return [sum(x) for x in by_episode(values, LENGTHS)]


def over_tokens(slope_E: dict[int, float]) -> list[float]:
    return [slope_E.get(i, 0.0) for i, n in enumerate(LENGTHS) for _ in range(n)]


@pytest.mark.parametrize("author", [Source.EXPERT, Source.POLICY])
def test_dpo_card(author: Source) -> None:
    """B14: log π(y_w) = −10 against −12, log π(y_l) = −11 against −10: h = 3, L = −log σ(.3) = .55436."""
    value, slopes = objective(method("dpo"), hand_batch(author, rows=2), logp_N=LOGP[:5])
    close(-value, 0.55436, 1e-5)
    push = 0.1 * sigma(-0.3)
    close(slopes["logp_N"], [push] * 2 + [-push] * 3)


def test_dpo_at_the_reference() -> None:
    """B14: π = π_ref, so L = ln 2 and each side is pushed by β/2."""
    value, slopes = objective(method("dpo"), hand_batch(rows=2), logp_N=REF[:5])
    close(-value, math.log(2))
    close(slopes["logp_N"], [0.05] * 2 + [-0.05] * 3)


def test_dpo_smoothed() -> None:
    """cDPO: −.9 log σ(.3) − .1 log σ(−.3) = .9 · .55436 + .1 · .85436 = .58436."""
    smooth = method("dpo").but(objective=DirectPreference(smoothing=0.1))
    value, slopes = objective(smooth, hand_batch(rows=2), logp_N=LOGP[:5])
    close(-value, 0.58436, 1e-5)
    close(slopes["logp_N"][0], 0.1 * (0.9 * sigma(-0.3) - 0.1 * sigma(0.3)))


def test_dpo_two_pairs() -> None:
    """The mean over pairs; an answer without a partner is in none."""
    ratio = [a - b for a, b in zip(sums(LOGP), sums(REF), strict=True)]
    value, slope = 0.0, {}
    for w, lose in PAIRS:
        h = 0.1 * (ratio[w] - ratio[lose])
        value += math.log(sigma(h)) / 2
        slope |= {w: 0.1 * sigma(-h) / 2, lose: -0.1 * sigma(-h) / 2}
    got, slopes = objective(method("dpo"), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], over_tokens(slope))
