"""Logits from hidden states: at least float32, and the fast path on a GPU is the plain one."""

import pytest
import torch
import torch.nn.functional as F

from gruppo.kernels.scores import scores


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_the_linear_map_with_its_gradients(dtype, bias):
    torch.manual_seed(0)
    leaves = [torch.randn(5, 7), torch.randn(11, 7), *([torch.randn(11)] if bias else [])]
    mine, plain = ([x.clone().to(dtype).requires_grad_() for x in leaves] for _ in range(2))
    ours, other = scores(*mine), F.linear(*plain)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, other, rtol=0, atol=0)
    (ours**2).sum().backward()
    (other**2).sum().backward()
    for a, b in zip(mine, plain, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_half_precision_is_widened():
    hidden, weight = torch.randn(5, 7).half(), torch.randn(11, 7).half()
    assert scores(hidden, weight).dtype == torch.float32
    torch.testing.assert_close(scores(hidden, weight), hidden.float() @ weight.float().T)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_bfloat16_on_a_gpu_loses_nothing_in_the_logits():
    torch.manual_seed(0)
    hidden = torch.randn(65, 128, device="cuda").bfloat16().requires_grad_()
    weight = torch.randn(999, 128, device="cuda").bfloat16().requires_grad_()
    out = scores(hidden, weight, torch.ones(999, device="cuda").bfloat16())
    exact = hidden.double() @ weight.double().T + 1
    assert out.dtype == torch.float32
    assert (out - exact).abs().max() < 1e-4  # rounded to bfloat16 it would be 0.1
    grad = torch.randn_like(out)
    out.backward(grad)
    back, across = grad.double() @ weight.double(), grad.double().T @ hidden.double()
    assert (hidden.grad - back).norm() < 0.01 * back.norm()
    assert (weight.grad - across).norm() < 0.01 * across.norm()
