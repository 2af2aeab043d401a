"""Covariance of advantage and log-probability: the tokens that reduce entropy most (arXiv:2505.22617)."""

import torch
from torch import Tensor


def token_covariance(adv_N: Tensor, logp_N: Tensor, where: Tensor) -> Tensor:
    """c_t = (A_t − mean A) (log π_t − mean log π), means over the rows in `where`; 0 outside.

    Its mean is the covariance, to which the decrease of entropy in a policy-gradient step is proportional: likely
    tokens with a high advantage, and unlikely ones with a low advantage, reduce the entropy.
    """
    count, zero = where.sum().clamp(min=1), adv_N.new_zeros(())
    a_N, l_N = (torch.where(where, x, zero) for x in (adv_N, logp_N))
    return torch.where(where, (a_N - a_N.sum() / count) * (l_N - l_N.sum() / count), zero)


def lowest(key_N: Tensor, second_N: Tensor, where: Tensor, count: int) -> Tensor:
    """The `count` rows in `where` with the smallest keys (all, if there are fewer); ties by the second key."""
    order = torch.argsort(torch.where(where, second_N, torch.full_like(second_N, float("inf"))), stable=True)
    order = order[torch.argsort(torch.where(where, key_N, torch.full_like(key_N, float("inf")))[order], stable=True)]
    return where & torch.zeros_like(where).index_fill(0, order[:count], True)


def singled_out(share: float, where: Tensor) -> int:
    """The number of rows in a share: at least one, but 0 for a share of 0."""
    return max(int(share * int(where.sum())), 1) if share > 0 else 0


def left_out(
    adv_N: Tensor, logp_N: Tensor, where: Tensor, may: Tensor, noise_N: Tensor, share: float, low: float, high: float
) -> Tensor:
    """A share of the rows in `where`, drawn from those of them that `may` and have low < covariance < high.

    Those with the smallest `noise_N`; at least one, if there is a candidate and the share is not 0.
    """
    cov_N = token_covariance(adv_N, logp_N, where)
    candidate_N = where & may & (cov_N > low) & (cov_N < high)
    return lowest(noise_N, noise_N, candidate_N, singled_out(share, where))
