"""Evidence for sapo: laws, mistakes, equivalences, resume, and numbers worked by hand."""

import math

import evidence
import pytest
import torch
from hand import answer, batch_of, column, objective, worked
from six_answers import ADV, LN3, LOGP, OLD, B, answers, close, hand_batch

from gruppo.methods import method
from gruppo.methods.sapo import SoftGate

test_laws = evidence.laws("sapo")
test_asks = evidence.asks("sapo")
test_terms = evidence.terms("sapo")
test_planted_mistakes = evidence.planted("sapo")
test_equivalences = evidence.equivalences("sapo")
test_resume = evidence.resume("sapo")


def test_sapo_gate_by_hand() -> None:
    """SAPO (arXiv:2511.20347), by hand: at r = 1 σ = ½, so f = 2/τ and the slope by log π is 1.

    At r = 2 with τ = ln 3: σ = ¾, f = 3/ln 3, slope 4 · ¾ · ¼ · 2 = 1.5."""
    for r, tau, value, slope in ((1.0, 1.0, 2.0, 1.0), (1.0, 1.05, 2 / 1.05, 1.0), (2.0, LN3, 3 / LN3, 1.5)):
        batch = batch_of([answer(0, "g", 1, 1.0)], logp_old_N=[-1.0 - math.log(r)], adv_N=[1.0])
        logp_N = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
        [term] = worked(SoftGate(tau_pos=tau, tau_neg=9.0), batch, logp_N=logp_N).values()
        total = term.total(batch)
        close(float(total.detach()), value)
        close(column(torch.autograd.grad(total, logp_N)[0]), [slope])


def test_sapo() -> None:
    """1/B Σ_i 1/T_i Σ_t 4/τ σ(τ(r − 1)) A, τ = 2 where A > 0, 3 where not; d/dlog π = 4σ(1 − σ) r A."""
    value, slope = 0.0, []
    for (lps, olds), a in zip(answers(LOGP, OLD), ADV, strict=True):
        tau = 2.0 if a > 0 else 3.0
        for lp, old in zip(lps, olds, strict=True):
            r = math.exp(lp - old)
            gate = 1.0 / (1.0 + math.exp(-tau * (r - 1)))
            value += 4 / tau * gate * a / len(lps) / B
            slope.append(4 * gate * (1 - gate) * r * a / len(lps) / B)
    got, slopes = objective(method("sapo").but(objective=SoftGate(2.0, 3.0)), hand_batch(), logp_N=LOGP)
    close(got, value)
    close(slopes["logp_N"], slope)


def test_sapo_refuses_a_temperature_of_zero() -> None:
    with pytest.raises(ValueError, match=r"tau_neg=0\.0 .*> 0"):
        SoftGate(tau_neg=0.0)


def test_a_gate_that_divides_by_nothing_is_refused() -> None:
    for pos, neg in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (-1.0, 1.0), (1.0, -1.0)):
        with pytest.raises(ValueError, match=r"tau_(pos|neg)=.* is out of range: use a number > 0"):
            SoftGate(tau_pos=pos, tau_neg=neg)
    assert SoftGate(tau_pos=0.5, tau_neg=0.5).tau_pos == 0.5
