"""Estimators of KL(π ‖ π_ref) at sampled tokens (Schulman 2020, "Approximating KL divergence")."""

import torch
from torch import Tensor


def k1(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """log π − log π_ref. Unbiased; as a loss its expected gradient is zero (pitfall 18)."""
    return logp - logp_ref


def k2(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """½ (log π − log π_ref)². Its gradient is an unbiased estimate of the gradient of the KL."""
    return 0.5 * (logp - logp_ref) ** 2


def k3(logp: Tensor, logp_ref: Tensor, bound: float = 20.0) -> Tensor:
    """exp(d) − d − 1, d = log π_ref − log π. Unbiased, never negative; its gradient is that of KL(π_ref ‖ π).

    d is at most `bound`, so that exp stays finite. No bound below: there the pull to the reference must not end.
    """
    d = torch.clamp(logp_ref - logp, max=bound)
    return torch.exp(d) - d - 1.0
