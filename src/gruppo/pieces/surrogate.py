"""Per-token objectives, to be maximised."""

import torch
from torch import Tensor

from gruppo.pieces.stop import stop


def clipped(ratio: Tensor, adv: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """min(r A, clip(r, 1 − clip_low, 1 + clip_high) A) (Schulman et al. 2017, arXiv:1707.06347)."""
    return torch.minimum(ratio * adv, torch.clamp(ratio, 1.0 - clip_low, 1.0 + clip_high) * adv)


def preserving(ratio: Tensor, adv: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """min(r A, C A), C = clip(r, (1 − clip_low) r/sg(r), (1 + clip_high) r/sg(r)) (GPPO, arXiv:2508.07629).

    The value is that of `clipped`. Where `clipped` has no gradient, this has that of the bound, (1 ± clip) A ∇log π.
    """
    unit = ratio / stop(ratio)  # 1, with the gradient of log r
    bounded = torch.minimum(torch.maximum(ratio, (1.0 - clip_low) * unit), (1.0 + clip_high) * unit)
    return torch.minimum(ratio * adv, bounded * adv)


def dual_clipped(value: Tensor, adv: Tensor, bound: float) -> Tensor:
    """max(value, bound · A) where A < 0: bounds the loss of tokens with a huge ratio (arXiv:1912.09729)."""
    return torch.where(adv < 0, torch.maximum(value, bound * adv), value)


def clip_fraction(ratio: Tensor, adv: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """1 where the clip removed the gradient."""
    high = (ratio > 1.0 + clip_high) & (adv > 0)
    low = (ratio < 1.0 - clip_low) & (adv < 0)
    return (high | low).to(ratio.dtype)


def clipped_log(log_ratio: Tensor, adv: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """Clipping of the log-ratio l: min(l, clip_high) where A > 0, else max(l, −clip_low) (GMPO, arXiv:2507.20673)."""
    return torch.where(adv > 0, log_ratio.clamp(max=clip_high), log_ratio.clamp(min=-clip_low))


def soft_gated(ratio: Tensor, adv: Tensor, tau_pos: float, tau_neg: float) -> Tensor:
    """4/τ · σ(τ (r − 1)) · A, τ by the sign of A (SAPO, arXiv:2511.20347).

    Its derivative by r is 4σ(1 − σ) A: A at r = 1, decaying on both sides, faster for a larger τ.
    """
    tau = torch.where(adv > 0, torch.full_like(adv, tau_pos), torch.full_like(adv, tau_neg))
    return 4.0 / tau * torch.sigmoid(tau * (ratio - 1.0)) * adv


def clipped_value_error(value: Tensor, value_old: Tensor, target: Tensor, clip_value: float) -> Tensor:
    """½ max((V − R)², (clip(V, V_old ± clip_value) − R)²)."""
    near = value_old + torch.clamp(value - value_old, -clip_value, clip_value)
    return 0.5 * torch.maximum((value - target) ** 2, (near - target) ** 2)
