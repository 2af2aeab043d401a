"""Objectives of preference pairs, to be maximised."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def bradley_terry(gap: Tensor, smoothing: float = 0.0) -> Tensor:
    """(1 − ε) log σ(gap) + ε log σ(−gap): the log-likelihood of a preference that is wrong with probability ε."""
    right = logsigmoid(gap)
    return (1.0 - smoothing) * right + smoothing * logsigmoid(-gap) if smoothing else right


def hinge(gap: Tensor) -> Tensor:
    """−max(0, 1 − gap): no gradient once the gap is 1 (SLiC, arXiv:2305.10425)."""
    return -torch.relu(1.0 - gap)


def log_odds(logp: Tensor, least: float = 1e-6) -> Tensor:
    """log p/(1 − p) from log p, which is clamped to at most −`least`: at p = 1 it would be infinite."""
    logp = torch.clamp(logp, max=-least)
    return logp - torch.log(-torch.expm1(logp))
