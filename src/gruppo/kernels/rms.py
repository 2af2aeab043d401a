"""RMSNorm on a CPU, w · x / √(mean x² + eps), in half of PyTorch's operations and bit for bit equal to it.

y = x r, r = (mean x² + eps)^(-1/2);   dx = r (w g) − x r³ mean(x · w g),   dw = Σ y g
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

KINDS = (torch.float32, torch.float64)  # PyTorch widens what has less precision


def rms_norm(x_XD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """`F.rms_norm` over the last dimension, with its gradient."""
    if _learns(x_XD, weight_D) or not _here(x_XD, weight_D):
        return F.rms_norm(x_XD, weight_D.shape, weight_D, eps)
    return rms_norm_plain(x_XD, weight_D, eps)


def norm_beside(x_XD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(x, its norm), for a block that adds to x what it makes of the norm.

    x goes through, so that its gradient meets that of the norm here, and is added in the order of PyTorch.
    """
    if _learns(x_XD, weight_D) and _here(x_XD, weight_D):
        return _Norm.apply(x_XD, weight_D, eps)  # type: ignore[no-any-return]
    return x_XD, rms_norm(x_XD, weight_D, eps)


def _learns(x_XD: Tensor, weight_D: Tensor) -> bool:
    return torch.is_grad_enabled() and (x_XD.requires_grad or weight_D.requires_grad)


def _here(x_XD: Tensor, weight_D: Tensor) -> bool:
    return x_XD.device.type == "cpu" and x_XD.dtype in KINDS and weight_D.dtype == x_XD.dtype


def rms_norm_plain(x_XD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    return (x_XD * _scale(x_XD, eps)).mul_(weight_D)


def _scale(x_XD: Tensor, eps: float) -> Tensor:
    return (x_XD * x_XD).mean(-1, keepdim=True).add_(eps).rsqrt_()


class _Norm(torch.autograd.Function):
    """The steps and their order are those of PyTorch's derivatives, so the bits are, too."""

    @staticmethod
    def forward(ctx: Any, x_XD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        scale_X1 = _scale(x_XD, eps)
        y_XD = x_XD * scale_X1
        ctx.save_for_backward(x_XD, weight_D, scale_X1, y_XD)
        return x_XD, y_XD * weight_D

    @staticmethod
    def backward(ctx: Any, around_XD: Tensor, grad_XD: Tensor) -> Any:  # type: ignore[override]
        x_XD, weight_D, scale_X1, y_XD = ctx.saved_tensors
        to_x, to_weight = None, None
        if ctx.needs_input_grad[0]:
            to_y = grad_XD * weight_D
            to_scale_X1 = (to_y * x_XD).sum(-1, keepdim=True)
            to_mean_X1 = (to_scale_X1 * (-0.5 * scale_X1.pow(3))).div_(x_XD.shape[-1])
            to_x = to_y.mul_(scale_X1).add_(around_XD).add_((x_XD * 2).mul_(to_mean_X1))
        if ctx.needs_input_grad[1]:
            to_weight = (grad_XD * y_XD).sum(tuple(range(grad_XD.dim() - 1)))
        return to_x, to_weight, None
