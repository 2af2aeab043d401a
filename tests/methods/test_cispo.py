"""Evidence for cispo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import torch
from hand import answer, batch_of, column, objective, worked
from six_answers import ADV, LN3, LOGP, OLD, T, answers, close, hand_batch
from small_batches import told, two_answers

from gruppo.methods import method
from gruppo.methods.cispo import ClippedWeight

test_laws = evidence.laws("cispo")
test_asks = evidence.asks("cispo")
test_terms = evidence.terms("cispo")
test_planted_mistakes = evidence.planted("cispo")
test_equivalences = evidence.equivalences("cispo")
test_resume = evidence.resume("cispo")


def test_cispo_card() -> None:
    """Card B10 (verl compute_policy_loss_cispo): r = 3, ε_high = .28, A = 1: gradient 1.28 ∇ log π; PPO's is 0."""
    batch = batch_of([answer(0, "g", 1, 1.0)], logp_old_N=[-1.0 - LN3], adv_N=[1.0])
    for objective_of, want in ((ClippedWeight(1.0, 0.28), 1.28), (method("dapo").objective[0], 0.0)):
        logp_N = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
        [slope] = torch.autograd.grad(worked(objective_of, batch, logp_N=logp_N)["policy"].total(batch), logp_N)
        close(column(slope), [want])


def test_cispo() -> None:
    """CISPO (arXiv:2506.13585): token-mean sg(clip(r, .9, 1.2)) A log π; d/dlog π = clip(r) A / T."""
    value, slope, sides = 0.0, [], set()
    for (lps, olds), a in zip(answers(LOGP, OLD), ADV, strict=True):
        for lp, old in zip(lps, olds, strict=True):
            r = math.exp(lp - old)
            w = min(max(r, 0.9), 1.2)
            sides.add((r > w) - (r < w))
            value += w * a * lp / T
            slope.append(w * a / T)
    assert sides == {-1, 0, 1}
    got, slopes = objective(method("cispo").but(objective=ClippedWeight(0.1, 0.2)), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_cispo_clips_from_above_only() -> None:
    """The record: weights from 0 to 5. r = e^−6 stays, r = e^6 is 5."""
    batch = batch_of([answer(0, "g", 1, 1.0), answer(1, "g", 1, 0.0)], logp_old_N=[-7.0, -1.0])
    _, slope = objective(method("cispo"), batch, logp_N=[-1.0, -7.0])
    a = 0.5 / (math.sqrt(0.5) + 1e-6)
    close(slope["logp_N"], [5.0 * a / 2, -math.exp(-6.0) * a / 2])


def test_the_share_of_weights_that_are_clipped() -> None:
    """CISPO's weights are bounded by 0 and 5: log 6 is above, and so is nothing else here."""
    batch = two_answers([1.0] * 4, [-9.0] * 4)
    logp = [-9.0, -9.0 + math.log(4.0), -9.0 + math.log(6.0), -11.0]
    assert told(ClippedWeight(), batch, logp, "weight_clipped") == [0.0, 0.0, 1.0, 0.0]
