"""Importance ratios."""

import torch
from torch import Tensor

from gruppo.data import Key, gather
from gruppo.pieces.stop import stop


def log_ratio(logp: Tensor, logp_other: Tensor, bound: float = 20.0) -> Tensor:
    """log π − log π_other, clamped to ±bound so that its exponential stays finite."""
    return torch.clamp(logp - logp_other, -bound, bound)


def ratio(logp: Tensor, logp_other: Tensor) -> Tensor:
    """r = π / π_other for each token."""
    return torch.exp(log_ratio(logp, logp_other))


def sequence_ratio(logp_N: Tensor, logp_other_N: Tensor, key: Key, where: Tensor | None = None) -> Tensor:
    """exp of the MEAN log-ratio of each part: the geometric mean of its token ratios (GSPO's ratio)."""
    return torch.exp(gather(log_ratio(logp_N, logp_other_N), key, "mean", where=where))


def product_ratio(logp_N: Tensor, logp_other_N: Tensor, key: Key, where: Tensor | None = None) -> Tensor:
    """exp of the SUM of log-ratios of each part: the importance weight of the whole sequence."""
    return torch.exp(torch.clamp(gather(log_ratio(logp_N, logp_other_N), key, "sum", where=where), -20.0, 20.0))


def geometric_by_token(log_N: Tensor, key: Key, where: Tensor | None = None) -> Tensor:
    """The geometric mean s = exp(mean l) of each part, on every row: sg(s) · exp(l_t − sg(l_t)).

    Its mean over the rows of a part has the value and the gradient of s, ds/dl_t = s / rows; a factor on a row scales
    only that row's gradient (GSPO-token, arXiv:2507.18071).
    """
    log_S = gather(log_N, key, "mean", where=where)
    return stop(torch.exp(log_S))[key.index] * torch.exp(log_N - stop(log_N))


def product_by_token(log_N: Tensor, key: Key, where: Tensor | None = None) -> Tensor:
    """The product s = exp(Σ l) of each part, on every row: sg(s) · exp(l_t − sg(l_t)).

    The gradients of the rows of a part add up to that of s, ds/dl_t = s; a factor on a row scales only that row's
    gradient. If every row is a part, it is the ratio of each token.
    """
    log_S = gather(log_N, key, "sum", where=where).clamp(-20.0, 20.0)
    return stop(torch.exp(log_S))[key.index] * torch.exp(log_N - stop(log_N))


def effective_share(weight: Tensor, where: Tensor) -> Tensor:
    """(Σ w)² / (n Σ w²) over the rows in `where`: 1 for equal weights, 1/n if one weight dominates."""
    w = torch.where(where, weight, torch.zeros_like(weight))
    return w.sum() ** 2 / (where.sum() * (w * w).sum()).clamp(min=torch.finfo(w.dtype).tiny)
