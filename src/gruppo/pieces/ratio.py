"""Importance ratios."""

import torch
from torch import Tensor

from gruppo.data import Key, gather


def log_ratio(logp: Tensor, logp_other: Tensor, bound: float = 20.0) -> Tensor:
    """log π − log π_other, kept inside ±bound so that its exponential stays finite."""
    return torch.clamp(logp - logp_other, -bound, bound)


def ratio(logp: Tensor, logp_other: Tensor) -> Tensor:
    """r = π / π_other, token by token."""
    return torch.exp(log_ratio(logp, logp_other))


def sequence_ratio(logp_N: Tensor, logp_other_N: Tensor, key: Key, where: Tensor | None = None) -> Tensor:
    """exp of the MEAN log-ratio of each part: the geometric mean of its token ratios (GSPO's ratio)."""
    return torch.exp(gather(log_ratio(logp_N, logp_other_N), key, "mean", where=where))


def product_ratio(logp_N: Tensor, logp_other_N: Tensor, key: Key, where: Tensor | None = None) -> Tensor:
    """exp of the SUM of log-ratios of each part: the importance weight of the whole sequence."""
    return torch.exp(torch.clamp(gather(log_ratio(logp_N, logp_other_N), key, "sum", where=where), -20.0, 20.0))
