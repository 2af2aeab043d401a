"""Log-probabilities of tokens and entropies from hidden states, with gradients; logits exist for one chunk at a time.

z = h Wᵀ / T,   log p = z_token − lse(z),   H = lse(z) − Σ p z
dz_v = g (1[v = token] − p_v) − e p_v (log p_v + H),   for slopes g of log p and e of H
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gruppo.kernels.language import jit, runs_on, tl
from gruppo.kernels.scores import scores

BLOCK = 4096
NUMBERS = 1 << 29  # logits at once: 2 GB in float32


def logprob_plain(hidden_XD: Tensor, weight_VD: Tensor, token_X: Tensor, heat_X: Tensor) -> tuple[Tensor, Tensor]:
    log_p = torch.log_softmax(scores(hidden_XD, weight_VD) / heat_X[:, None], -1)
    return log_p.gather(1, token_X[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def logprob(hidden_XD: Tensor, weight_VD: Tensor, token_X: Tensor, heat_X: Tensor) -> tuple[Tensor, Tensor]:
    """(log-probabilities of the tokens, entropies), float32. `heat_X` are temperatures."""
    if not runs_on(hidden_XD):
        return logprob_plain(hidden_XD, weight_VD, token_X, heat_X)
    found: Any = _LogProb.apply(hidden_XD, weight_VD, token_X, heat_X.float())
    return found


class _LogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_XD: Tensor, weight_VD: Tensor, token_X: Tensor, heat_X: Tensor) -> Any:
        size, vocab = max(NUMBERS // len(weight_VD), 1), len(weight_VD)
        lse_X, logp_X, entropy_X = (torch.empty_like(heat_X) for _ in range(3))
        for a in range(0, len(hidden_XD), size):
            logits_CV = scores(hidden_XD[a : a + size], weight_VD)
            given = (x[a : a + size] for x in (token_X, heat_X, lse_X, logp_X, entropy_X))
            _read[(len(logits_CV),)](logits_CV, *given, vocab, BLOCK, num_warps=8)
        ctx.save_for_backward(hidden_XD, weight_VD, token_X, heat_X, lse_X, entropy_X)
        return logp_X, entropy_X

    @staticmethod
    def backward(ctx: Any, slope_X: Tensor, steep_X: Tensor) -> Any:  # type: ignore[override]
        hidden_XD, weight_VD, token_X, heat_X, lse_X, entropy_X = ctx.saved_tensors
        size, vocab = max(NUMBERS // len(weight_VD), 1), len(weight_VD)
        to_hidden, to_weight = ctx.needs_input_grad[:2]
        hidden_grad = torch.empty_like(hidden_XD) if to_hidden else None
        weight_grad = torch.zeros_like(weight_VD, dtype=torch.float32) if to_weight else None
        for a in range(0, len(hidden_XD), size):
            h_CD = hidden_XD[a : a + size]
            logits_CV = scores(h_CD, weight_VD)
            grad_CV = torch.empty_like(logits_CV, dtype=hidden_XD.dtype)
            rows = (token_X, heat_X, lse_X, entropy_X, slope_X.contiguous(), steep_X.contiguous())
            given = (x[a : a + size] for x in rows)
            _slopes[(len(logits_CV), -(-vocab // BLOCK))](logits_CV, grad_CV, *given, vocab, BLOCK, num_warps=8)
            del logits_CV
            if hidden_grad is not None:
                hidden_grad[a : a + size] = grad_CV @ weight_VD
            if weight_grad is not None:
                weight_grad += scores(grad_CV.T, h_CD.T)
        return hidden_grad, None if weight_grad is None else weight_grad.to(weight_VD.dtype), None, None


@jit
def _read(logits, token, heat, lse, logp, entropy, V: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    warm = tl.load(heat + row)
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    mean = tl.zeros((), tl.float32)  # Σ exp(z − top) z
    for start in range(0, V, BLOCK):
        v = start + tl.arange(0, BLOCK)
        z = tl.load(logits + row * V + v, mask=v < V, other=float("-inf")) / warm
        new = tl.maximum(top, tl.max(z, 0))
        p = tl.exp(z - new)
        shrink = tl.exp(top - new)
        total = total * shrink + tl.sum(p, 0)
        mean = mean * shrink + tl.sum(tl.where(p > 0, p * z, 0.0), 0)
        top = new
    all_ = top + tl.log(total)
    chosen = tl.load(logits + row * V + tl.load(token + row)) / warm
    tl.store(lse + row, all_)
    tl.store(logp + row, chosen - all_)
    tl.store(entropy + row, all_ - mean / total)


@jit
def _slopes(logits, grad, token, heat, lse, entropy, slope, steep, V: tl.constexpr, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    v = block * BLOCK + tl.arange(0, BLOCK)
    warm = tl.load(heat + row)
    log_p = tl.load(logits + row * V + v, mask=v < V, other=float("-inf")) / warm - tl.load(lse + row)
    p = tl.exp(log_p)
    g = tl.load(slope + row)
    bent = tl.where(p > 0, p * (log_p + tl.load(entropy + row)), 0.0)
    dz = tl.where(v == tl.load(token + row), g, 0.0) - g * p - tl.load(steep + row) * bent
    tl.store(grad + row * V + v, (dz / warm).to(grad.dtype.element_ty), mask=v < V)
