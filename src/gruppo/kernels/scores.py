"""Hidden states to logits in at least float32, at the speed of the weights' own dtype."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)


def scores(hidden_XD: Tensor, weight_VD: Tensor, bias_V: Tensor | None = None) -> Tensor:
    """hidden · weightᵀ + bias, accumulated and returned in float32 (float64 if the weights are).

    A GPU multiplies bfloat16 numbers exactly and accumulates in float32, so it is enough not to round the result. That
    is about ten times faster than to convert the factors first.
    """
    dtype = torch.promote_types(hidden_XD.dtype, torch.float32)
    if hidden_XD.is_cuda and hidden_XD.dtype in HALF and weight_VD.dtype == hidden_XD.dtype:
        logits_XV: Tensor = _Wide.apply(hidden_XD, weight_VD)  # type: ignore[no-untyped-call]
        return logits_XV if bias_V is None else logits_XV + bias_V.to(dtype)
    return F.linear(hidden_XD.to(dtype), weight_VD.to(dtype), None if bias_V is None else bias_V.to(dtype))


class _Wide(torch.autograd.Function):
    """h · Wᵀ of two half-precision matrices in float32. Gradients are rounded to the dtype of the factors."""

    @staticmethod
    def forward(ctx: Any, hidden_XD: Tensor, weight_VD: Tensor) -> Tensor:
        ctx.save_for_backward(hidden_XD, weight_VD)
        return torch.mm(hidden_XD, weight_VD.T, out_dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad_XV: Tensor) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[override]
        hidden_XD, weight_VD = ctx.saved_tensors
        grad_XV = grad_XV.to(hidden_XD.dtype)
        hidden, weight = ctx.needs_input_grad
        return grad_XV @ weight_VD if hidden else None, grad_XV.T @ hidden_XD if weight else None
