"""KL estimators as losses: their expected gradient, by enumeration of a small softmax.

The expectation is over samples of π itself, which are not differentiated, as in a trainer. Then (Schulman 2020; worked
out for losses in trl#4637 and open-instruct#534)

    E[∇k1] = 0,     E[∇k2] = ∇ KL(π ‖ ref),     E[∇k3] = ∇ KL(ref ‖ π),     E[∇(r k3)] = ∇ KL(π ‖ ref)   (r = π/sg π)

so k3 as a loss is the gradient of the other KL: the same to first order near the reference, not far from it. The full
sum over the vocabulary has the value and the gradient of KL(π ‖ ref) itself, at every context and without a sample.
"""

import pytest
import torch
from torch import Tensor

from gruppo.pieces.divergence import full, k1, k2, k3
from gruppo.pieces.ratio import ratio


def gradient(loss: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(loss, logits)[0]


@pytest.fixture(params=[0, 1, 2])
def models(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(request.param)
    logits, ref = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), torch.log_softmax(ref, -1)


def expected(estimator: object, logits: Tensor, ref: Tensor, weighed: bool = False) -> Tensor:
    """Σ_a π(a) ∇ k(log π(a)), π(a) not differentiated."""
    logp = torch.log_softmax(logits, -1)
    value = estimator(logp, ref)  # type: ignore[operator]
    if weighed:
        value = ratio(logp, logp.detach()) * value
    return gradient((logp.detach().exp() * value).sum(), logits)


def reverse(logits: Tensor, ref: Tensor) -> Tensor:
    """∇ KL(π ‖ ref), exactly."""
    logp = torch.log_softmax(logits, -1)
    return gradient((logp.exp() * (logp - ref)).sum(), logits)


def forward(logits: Tensor, ref: Tensor) -> Tensor:
    """∇ KL(ref ‖ π), exactly."""
    return gradient((ref.exp() * (ref - torch.log_softmax(logits, -1))).sum(), logits)


def test_values_are_unbiased(models: tuple[Tensor, Tensor]) -> None:
    logits, ref = models
    logp = torch.log_softmax(logits, -1).detach()
    kl = float((logp.exp() * (logp - ref)).sum())
    for estimator in (k1, k3):
        assert float((logp.exp() * estimator(logp, ref)).sum()) == pytest.approx(kl, rel=1e-12)
    assert bool((k3(logp, ref) >= 0).all())


def test_k1_as_a_loss_teaches_nothing(models: tuple[Tensor, Tensor]) -> None:
    logits, ref = models
    assert float(expected(k1, logits, ref).norm()) < 1e-14
    assert float(reverse(logits, ref).norm()) > 1e-2


def test_k2_has_the_exact_gradient(models: tuple[Tensor, Tensor]) -> None:
    logits, ref = models
    assert torch.allclose(expected(k2, logits, ref), reverse(logits, ref), rtol=1e-12, atol=1e-14)


def test_k3_has_the_gradient_of_the_other_kl(models: tuple[Tensor, Tensor]) -> None:
    logits, ref = models
    assert torch.allclose(expected(k3, logits, ref), forward(logits, ref), rtol=1e-12, atol=1e-14)
    assert not torch.allclose(expected(k3, logits, ref), reverse(logits, ref), rtol=1e-2, atol=1e-3)


def test_weighed_k3_has_the_exact_gradient(models: tuple[Tensor, Tensor]) -> None:
    logits, ref = models
    assert torch.allclose(expected(k3, logits, ref, weighed=True), reverse(logits, ref), rtol=1e-12, atol=1e-14)


def test_full_is_the_kl_itself(models: tuple[Tensor, Tensor]) -> None:
    logits, ref = models
    logp = torch.log_softmax(logits, -1)
    value = full(logp, ref)
    with torch.no_grad():
        assert torch.allclose(value, (logp.exp() * (logp - ref)).sum(), rtol=1e-12)
    assert torch.allclose(gradient(value, logits), reverse(logits, ref), rtol=1e-12, atol=1e-14)


def test_full_inside_a_truncation_set(models: tuple[Tensor, Tensor]) -> None:
    """Tokens that could not be drawn add nothing: the KL of the two distributions over the rest, finite gradient."""
    logits, ref = models
    inside = torch.tensor([True, False, True, True, False])
    cut = [torch.log_softmax(x.masked_fill(~inside, float("-inf")), -1) for x in (logits, ref)]
    small = logits[inside].detach().requires_grad_()
    want = full(torch.log_softmax(small, -1), torch.log_softmax(ref[inside], -1))
    got = full(*cut)
    assert torch.allclose(got.detach(), want.detach(), rtol=1e-12)
    slope = gradient(got, logits)
    assert torch.allclose(slope[inside], gradient(want, small)) and bool((slope[~inside] == 0).all())


def test_off_policy_only_full_stays_right(models: tuple[Tensor, Tensor]) -> None:
    """Tokens drawn by another policy: the estimators have other gradients than ∇ KL(π ‖ ref), `full` asks no token."""
    logits, ref = models
    behaviour = torch.softmax(torch.linspace(-1.0, 1.0, 5, dtype=torch.float64), -1)
    logp = torch.log_softmax(logits, -1)
    exact = reverse(logits, ref)
    for estimator in (k1, k2, k3):
        drawn = gradient((behaviour * estimator(logp, ref)).sum(), logits)
        logp = torch.log_softmax(logits, -1)
        assert float((drawn - exact).norm() / exact.norm()) > 1e-2
    assert torch.allclose(gradient((behaviour * full(logp, ref)).sum(), logits), exact)


def test_near_the_reference_all_agree(models: tuple[Tensor, Tensor]) -> None:
    """To first order: at a distance of ε they differ by ε²."""
    logits, _ = models
    step = torch.randn(5, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    off = []
    for eps in (1e-2, 1e-3):
        ref = torch.log_softmax(logits.detach() + eps * step, -1)
        exact = reverse(logits, ref)
        off.append(float((expected(k3, logits, ref) - exact).norm() / exact.norm()))
    assert off[0] < 0.1 and off[1] == pytest.approx(off[0] / 10, rel=0.2)
