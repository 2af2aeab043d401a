"""Evidence for orpo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import torch
from hand import objective
from pairs_by_hand import close, hand_batch, sigma

from gruppo.methods import method
from gruppo.methods.orpo import OddsRatio
from gruppo.pieces.preference import bradley_terry, log_odds

test_laws = evidence.laws("orpo")
test_asks = evidence.asks("orpo")
test_terms = evidence.terms("orpo")
test_equivalences = evidence.equivalences("orpo")
test_resume = evidence.resume("orpo")


def test_orpo_card() -> None:
    """B17: a_w = −.5 and a_l = −1.5: lo = 1.6803, L_OR = .17086; and the likelihood of y_w."""
    logp = [-0.4, -0.6, -1.0, -1.5, -2.0]
    lo = float(log_odds(torch.tensor(-0.5)) - log_odds(torch.tensor(-1.5)))
    close(lo, 1.6803, 1e-4)
    close(-float(bradley_terry(torch.tensor(lo))), 0.17086, 1e-4)
    value, slopes = objective(method("orpo"), hand_batch(rows=2), logp_N=logp)
    close(-value, 0.5 + 0.1 * 0.17086, 1e-5)
    down = -0.1 * sigma(-1.68028) / (1 - math.exp(-1.5)) / 3  # d logit/da = 1/(1 − e^a)
    close(slopes["logp_N"][2:], [down] * 3, 1e-5)
    up = 0.5 + 0.1 * sigma(-1.68028) / (1 - math.exp(-0.5)) / 2
    close(slopes["logp_N"][:2], [up] * 2, 1e-5)


def test_orpo_at_certainty() -> None:
    """B17, edge: a_w → 0 has no odds; it is kept at −1e-6 and the value stays finite, log(1e6) and not more."""
    value, slopes = objective(
        method("orpo").but(objective=OddsRatio(odds_coef=1.0)), hand_batch(rows=2), logp_N=[0.0] * 5
    )
    close(-value, math.log(2), 1e-5)
    assert all(math.isfinite(s) for s in slopes["logp_N"]) and slopes["logp_N"][2:] == [0.0] * 3
    close(float(log_odds(torch.tensor(0.0, dtype=torch.float64))), math.log(1e6 - 1), 1e-6)
