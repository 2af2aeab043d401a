"""Kernels against their twins, on a GPU: random shapes, and NaN in all memory that a kernel may not read."""

import pytest
import torch
from kernel_cases import SHAPES, attention_case, close, logits_case
from torch import Tensor

from gruppo.kernels.attention import attend, attend_plain, shares, shares_plain
from gruppo.kernels.draw import advance, draw_plain, draw_token
from gruppo.kernels.logprob import logprob, logprob_plain
from gruppo.kernels.norm import add_norm, add_norm_plain
from gruppo.kernels.rope import turn, turn_plain
from gruppo.kernels.swiglu import silu_times, swiglu, swiglu_plain
from gruppo.kernels.thin import (
    add_linear,
    add_linear_plain,
    fits,
    norm_linear,
    norm_linear_plain,
    norm_swiglu,
    norm_swiglu_plain,
)

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
MANY = [*SHAPES, (14, 2, 64, False, 256, 2000), (12, 2, 128, False, 1024, 500), (28, 4, 128, True, 64, 4000)]


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("shape", MANY)
def test_attention(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    case = attention_case(shape, dtype, "cuda")
    twin = case | {k: case[k].clone() for k in ("keys", "values")}
    y, wanted = attend(**case), attend_plain(**twin)
    assert not y.isnan().any()
    close(y, wanted, LIMIT[dtype])
    for k in ("keys", "values"):
        assert torch.equal(case[k].isnan(), twin[k].isnan())
        close(case[k].nan_to_num(), twin[k].nan_to_num(), LIMIT[dtype])


@pytest.mark.parametrize("shape", MANY)
def test_attention_in_parts_that_are_known_before(shape: tuple[int, ...]) -> None:
    """As in a step: the same parts for all layers, and each layer begins before the one in front of it has ended."""
    case = attention_case(shape, torch.bfloat16, "cuda")
    wanted = attend_plain(**case)
    found = shares(case["pos_B"], case["h"].kv_heads)
    assert torch.equal(found, shares_plain(case["pos_B"], case["h"].kv_heads))
    for y in [attend(**case, shares_E=found) for _ in range(4)]:
        close(y, wanted, LIMIT[torch.bfloat16])


@pytest.mark.parametrize(("rows", "vocab"), [(1, 99), (256, 151936), (64, 49152), (1024, 32000), (7, 2048)])
@pytest.mark.parametrize("dtype", LIMIT)
def test_draw(rows: int, vocab: int, dtype: torch.dtype) -> None:
    case = logits_case(rows, vocab, "cuda", dtype)
    (token, logp, lost), wanted = draw_token(**case), draw_plain(**case)
    same = token == wanted[0]
    assert int((~same).sum()) <= 1 + rows // 200 and not lost.any()  # thresholds move by 1e-7 of the mass
    close(logp[same], wanted[1][same], 1e-5)
    case["logits_BV"][0] = torch.nan
    assert draw_token(**case)[2].tolist() == [True] + [False] * (rows - 1)


def test_advance() -> None:
    def done(device: str) -> list[Tensor]:
        draw = torch.Generator().manual_seed(0)
        state, count = torch.randint(0, 50, (3, 9), generator=draw), torch.randint(0, 3, (9,), generator=draw)
        out = torch.rand(9, 9, generator=draw, dtype=torch.float64)
        token, logp, lost = torch.arange(7), torch.rand(7, generator=draw), torch.arange(7) % 2 == 0
        tensors = [x.to(device) for x in (token, logp, lost, state, count, out)]
        advance(*tensors, 40)  # type: ignore[arg-type]
        return [x.cpu() for x in tensors]

    for a, b in zip(done("cuda"), done("cpu"), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize(("rows", "dim"), [(1, 64), (7, 896), (256, 1536), (1024, 4096), (33, 5000)])
def test_norm_and_swiglu(rows: int, dim: int, dtype: torch.dtype) -> None:
    x, y, w = randn(rows, dim, dtype=dtype), randn(rows, dim, dtype=dtype), randn(dim, dtype=dtype)
    for a, b in zip(add_norm(x.clone(), y, w, 1e-6), add_norm_plain(x, y, w, 1e-6), strict=True):
        close(a, b, LIMIT[dtype])
    for a, b in zip(add_norm(x.clone(), None, w, 1e-6), add_norm_plain(x, None, w, 1e-6), strict=True):
        close(a, b, LIMIT[dtype])
    both = torch.cat([x, y], -1)
    close(swiglu(both), swiglu_plain(both), LIMIT[dtype])


@pytest.mark.parametrize(
    ("rows", "dim", "wide"), [(1, 64, 40), (2, 896, 4864), (1, 1536, 8960), (2, 576, 1536), (1, 2048, 1000)]
)
def test_layers_of_few_rows(rows: int, dim: int, wide: int) -> None:
    """Several times: whoever comes last must find all parts, and leave the counters as they were."""
    kind = torch.bfloat16
    x, h, norm, bias = randn(rows, dim, dtype=kind), randn(rows, wide, dtype=kind), randn(dim, dtype=kind), randn(wide)
    into, back = (randn(n, dim) / dim**0.5 for n in (wide, 2 * wide)), randn(dim, wide) / wide**0.5
    (up, both), down, bias = (w.to(kind) for w in into), back.to(kind), bias.to(kind)
    assert fits(x)
    for _ in range(5):
        close(norm_linear(x, norm, 1e-6, up, bias), norm_linear_plain(x, norm, 1e-6, up, bias), LIMIT[kind])
        close(norm_swiglu(x, norm, 1e-6, both), norm_swiglu_plain(x, norm, 1e-6, both), LIMIT[kind])
        for b in (None, norm):
            close(add_linear(x.clone(), h, down, b), add_linear_plain(x.clone(), h, down, b), LIMIT[kind])
    one, two = (add_linear(x.clone(), h, down, None) for _ in range(2))
    assert torch.equal(one, two)  # parts are added in their order, whoever comes last


@pytest.mark.parametrize("dtype", LIMIT)
def test_gradients_of_swiglu_and_rotation(dtype: torch.dtype) -> None:
    x, y, g = (randn(50, 14 * 48, dtype=dtype).requires_grad_() for _ in range(3))
    plain = swiglu_plain(torch.cat([x, y], -1))
    for a, b in zip(*(torch.autograd.grad(out, (x, y), g) for out in (silu_times(x, y), plain)), strict=True):
        close(a, b, 2 * LIMIT[dtype])
    angle = torch.randn(50, 1, 24, device="cuda")
    cos, sin = torch.cat([angle.cos()] * 2, -1).to(dtype), torch.cat([-angle.sin(), angle.sin()], -1).to(dtype)
    heads = x.unflatten(-1, (14, 48))
    turned, wanted = turn(heads, cos, sin), turn_plain(heads, cos, sin)
    close(turned, wanted, LIMIT[dtype])
    slope = g.unflatten(-1, (14, 48))
    close(torch.autograd.grad(turned, x, slope)[0], torch.autograd.grad(wanted, x, slope)[0], LIMIT[dtype])


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize(("rows", "vocab"), [(1, 99), (700, 5000), (5000, 151936)])
def test_log_probabilities(rows: int, vocab: int, dtype: torch.dtype) -> None:
    hidden = randn(rows, 64, dtype=dtype).requires_grad_()
    weight = (randn(vocab, 64) * 0.1).to(dtype).requires_grad_()
    token, heat = torch.randint(0, vocab, (rows,), device="cuda"), torch.rand(rows, device="cuda") + 0.5
    slope, steep = randn(rows), randn(rows)
    found = []
    for read in (logprob, logprob_plain):
        logp, entropy = read(hidden, weight, token, heat)
        grads = torch.autograd.grad((logp * slope).sum() + (entropy * steep).sum(), (hidden, weight))
        found.append((logp.detach(), entropy.detach(), *grads))
    for a, b, limit in zip(*found, (1e-5, 1e-5, LIMIT[dtype], LIMIT[dtype]), strict=True):
        close(a, b, limit)


@pytest.mark.parametrize("dtype", LIMIT)
def test_rotation_of_the_first_heads_of_more(dtype: torch.dtype) -> None:
    x, cos, sin = randn(50, 9, 64, dtype=dtype), randn(50, 1, 64), randn(50, 1, 64)
    close(turn(x[:, :7], cos, sin), turn_plain(x[:, :7].float(), cos, sin), LIMIT[dtype])
