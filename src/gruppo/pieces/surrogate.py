"""Per-token objectives, to be maximised."""

import torch
from torch import Tensor


def clipped(ratio: Tensor, adv: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """min(r A, clip(r, 1 − clip_low, 1 + clip_high) A) (Schulman et al. 2017, arXiv:1707.06347)."""
    return torch.minimum(ratio * adv, torch.clamp(ratio, 1.0 - clip_low, 1.0 + clip_high) * adv)


def dual_clipped(value: Tensor, adv: Tensor, bound: float) -> Tensor:
    """max(value, bound · A) where A < 0: bounds the loss of bad tokens with a huge ratio (arXiv:1912.09729)."""
    return torch.where(adv < 0, torch.maximum(value, bound * adv), value)


def clip_fraction(ratio: Tensor, adv: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """1 where the clip removed the gradient."""
    high = (ratio > 1.0 + clip_high) & (adv > 0)
    low = (ratio < 1.0 - clip_low) & (adv < 0)
    return (high | low).to(ratio.dtype)


def clipped_value_error(value: Tensor, value_old: Tensor, target: Tensor, clip_value: float) -> Tensor:
    """½ max((V − R)², (clip(V, V_old ± clip_value) − R)²)."""
    near = value_old + torch.clamp(value - value_old, -clip_value, clip_value)
    return 0.5 * torch.maximum((value - target) ** 2, (near - target) ** 2)
