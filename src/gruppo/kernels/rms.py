"""RMSNorm on a CPU, w · x / √(mean x² + eps), in half of PyTorch's operations and bit for bit equal to it."""

import torch
import torch.nn.functional as F
from torch import Tensor

KINDS = (torch.float32, torch.float64)  # PyTorch widens what has less precision


def rms_norm(x_XD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """`F.rms_norm` over the last dimension, with its gradient."""
    learns = torch.is_grad_enabled() and (x_XD.requires_grad or weight_D.requires_grad)
    if learns or x_XD.device.type != "cpu" or x_XD.dtype not in KINDS or weight_D.dtype != x_XD.dtype:
        return F.rms_norm(x_XD, weight_D.shape, weight_D, eps)
    return rms_norm_plain(x_XD, weight_D, eps)


def rms_norm_plain(x_XD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    scale_X1 = (x_XD * x_XD).mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (x_XD * scale_X1).mul_(weight_D)
