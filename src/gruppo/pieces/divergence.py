"""KL(π ‖ π_ref): three estimators at sampled tokens (Schulman 2020, "Approximating KL divergence"), and in full.

    piece  expected value over π        expected gradient over π, as a loss (samples are not differentiated)
    k1     KL(π ‖ π_ref)                0
    k2     not the KL; equal near 0     that of KL(π ‖ π_ref)
    k3     KL(π ‖ π_ref)                that of KL(π_ref ‖ π); equal to first order near the reference
    full   KL(π ‖ π_ref), no variance   that of KL(π ‖ π_ref), no variance, over all tokens

The first three hold in expectation over π only: on samples of another policy (several optimiser steps per batch) they
are biased unless weighted by the ratio. `full` depends on the sampled context only.
"""

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

    d is at most `bound`, so that exp stays finite. There is no lower bound, where the pull to the reference must stay.
    """
    d = torch.clamp(logp_ref - logp, max=bound)
    return torch.exp(d) - d - 1.0


def full(logp_CV: Tensor, logp_ref_CV: Tensor) -> Tensor:
    """Σ_a π(a) (log π(a) − log π_ref(a)) over the last dimension; tokens of probability 0 add 0."""
    inside = torch.isfinite(logp_CV)
    gap_CV = torch.where(inside, logp_CV - torch.where(inside, logp_ref_CV, 0.0), 0.0)
    return (logp_CV.exp() * gap_CV).sum(-1)
