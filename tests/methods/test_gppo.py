"""Evidence for gppo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import pytest
from hand import objective
from six_answers import LENGTHS, LOGP, OLD, REWARDS, T, close, group_advantages, hand_batch
from small_batches import slopes

from gruppo.methods import method
from gruppo.methods.gppo import GradientPreserving
from gruppo.stages.objective import ClippedSurrogate

test_laws = evidence.laws("gppo")
test_asks = evidence.asks("gppo")
test_planted_mistakes = evidence.planted("gppo")
test_equivalences = evidence.equivalences("gppo")
test_resume = evidence.resume("gppo")


ADV = [a for a, n in zip(group_advantages(REWARDS), LENGTHS, strict=True) for _ in range(n)]


@pytest.mark.parametrize(
    ("r", "a", "preserved", "clipped"),
    [
        (2.0, 1.0, 1.28, 0.0),
        (2.0, -1.0, -2.0, -2.0),
        (0.5, -1.0, -0.8, 0.0),
        (0.5, 1.0, 0.5, 0.5),
        (1.1, -1.0, -1.1, -1.1),
        (12.0, -1.0, 0.0, 0.0),
    ],
)
def test_gppo_card(r: float, a: float, preserved: float, clipped: float) -> None:
    """Card S167 (KlearReasoner, compute_gppo_loss): at r = 2 and A = 1 the gradient is 1.28, PPO's is 0; at A = −1
    it is −2. Below the clip a bad token keeps 0.8, beyond the dual clip of 10 it has none. The value is PPO's."""
    value, [slope], _ = slopes(method("gppo").objective[0], [r], [a])
    same, [ppo], _ = slopes(ClippedSurrogate(0.2, 0.28, 10.0, "token"), [r], [a])
    close([value, slope, ppo], [same, preserved, clipped])


def test_gppo() -> None:
    """1/T Σ min(rA, clip(r, .8, 1.28) A); d/dlog π = rA, or the bound times A where the clip binds."""
    value, slope, bound = 0.0, [], 0
    for lp, old, a in zip(LOGP, OLD, ADV, strict=True):
        r = math.exp(lp - old)
        w = min(max(r, 0.8), 1.28)
        binds = w * a < r * a
        bound += binds
        value += min(r * a, w * a) / T
        slope.append((w if binds else r) * a / T)
    assert bound >= 2
    got, found = objective(method("gppo").but(select=()), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(found["logp_N"], slope)


def test_gppo_counts_what_met_a_bound() -> None:
    occupant = GradientPreserving()
    assert [slopes(occupant, [r], [a])[2]["gradient_bounded"] for r, a in ((2.0, 1.0), (2.0, -1.0), (0.5, -1.0))] == [
        1.0,
        0.0,
        1.0,
    ]
