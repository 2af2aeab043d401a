"""Advantages: how much better than what was to be expected. Degenerate groups are defined here, once.

A group of one, and a group of equal rewards, have an advantage of exactly 0; rows outside `where` (failed, unfinished
or unused episodes) have 0 and are in no statistic.
"""

import torch
from torch import Tensor

from gruppo.data import Key, gather, segment


def z_score(x: Tensor, key: Key, *, where: Tensor | None = None, eps: float = 1e-6, ddof: int = 1) -> Tensor:
    """(x − mean) / (std + eps) inside each part; 0 where the part has at most `ddof` rows, or equal ones.

    Of several columns, each by itself.
    """
    centred, std, n = segment.deviations(x, key, where=where, ddof=ddof)
    varied = (std > 0) & (n > ddof).view(-1, *[1] * (x.dim() - 1))
    # An infinite scale gives 0, also for eps = 0.
    return centred / key.spread(torch.where(varied, std + eps, torch.full_like(std, float("inf"))))


def leave_one_out(x: Tensor, key: Key, *, where: Tensor | None = None) -> Tensor:
    """x_i − mean of the others = n/(n−1) (x_i − mean); 0 in a part of one row."""
    centred, _, count = segment.deviations(x, key, where=where)
    n = count.to(centred.dtype)
    return centred * key.spread(torch.where(n > 1, n / (n - 1).clamp(min=1), torch.zeros_like(n)))


def weighted_centre(x: Tensor, weight: Tensor, key: Key, *, where: Tensor | None = None) -> Tensor:
    """x − Σ w x / Σ w inside each part; 0 outside `where`, and in a part that weighs nothing or has equal rows."""
    low = key.spread(gather(x, key, "min", where=where))
    above = x - low  # so that equal rows are exactly 0
    total = gather(weight, key, "sum", where=where)
    mean = gather(weight * above, key, "sum", where=where) / torch.where(total > 0, total, torch.ones_like(total))
    known = key.spread(total > 0) if where is None else where & key.spread(total > 0)
    return torch.where(known, above - key.spread(mean), torch.zeros_like(above))


def lead(x: Tensor, key: Key, k: int, *, where: Tensor | None = None) -> Tensor:
    """What a row adds to the best of k of its part: max with it less max without it, mean over its k − 1 companions.

    Σ over the steps of the sorted part up to the row, (x_(m) − x_(m−1)) C(m, k−1) / C(n−1, k−1), m = 0 … n−1: a step
    counts with the chance that all companions lie below it. A part of less than k rows counts as a whole; one row
    alone has 0.
    """
    rows = torch.arange(len(x), device=x.device) if where is None else torch.nonzero(where)[:, 0]
    rows = rows[torch.argsort(x[rows], descending=True, stable=True)]
    rows = rows[torch.argsort(key.index[rows], stable=True)]
    part = key.index[rows]
    start, size = segment.offsets(Key(part, key.size))
    below = (start + size)[part] - 1 - torch.arange(len(rows), device=x.device)
    others = size[part] - 1
    companions = others.clamp(max=k - 1)
    chance = torch.where((below >= companions) & (others > 0), _choices(below, companions, others), 0.0)
    sorted_x = x[rows]
    step = (sorted_x - segment.lag(sorted_x, -1, part)) * chance.to(x.dtype)  # the lowest has no chance, so no step
    return torch.zeros_like(x).index_copy(0, rows, segment.scan(step, 1.0, part))


def _choices(a: Tensor, k: Tensor, b: Tensor) -> Tensor:
    """C(a, k) / C(b, k), for a ≥ k."""

    def log_falling(n: Tensor) -> Tensor:
        return torch.lgamma(n.double() + 1) - torch.lgamma((n - k).clamp(min=0).double() + 1)

    return torch.exp(log_falling(a) - log_falling(b))


def whiten(x: Tensor, where: Tensor, eps: float = 1e-8) -> Tensor:
    """(x − mean) / sqrt(var + eps) over the rows in `where`, var with n − 1; fewer than two rows stay as they are."""
    zero, n = torch.zeros((), dtype=x.dtype, device=x.device), int(where.sum())
    if n < 2:
        return torch.where(where, x, zero)
    low = torch.where(where, x, torch.full_like(zero, float("inf"))).min()
    x = torch.where(where, x - low, zero)  # equal rows are then exactly 0, and large offsets do not cancel
    x = torch.where(where, x - x.sum() / n, zero)
    return x * torch.rsqrt((x * x).sum() / (n - 1) + eps)


def ends(part_N: Tensor) -> Tensor:
    """1 at the last row of each part, else 0; parts contiguous."""
    last = part_N.new_ones(len(part_N), dtype=torch.bool)
    last[:-1] = part_N[1:] != part_N[:-1]
    return last.to(torch.get_default_dtype())


def gae(
    reward_N: Tensor,
    value_N: Tensor,
    part_N: Tensor,
    gamma: float | Tensor,
    lam: float | Tensor,
    tail_N: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage (Schulman et al. 2016, arXiv:1506.02438) over rows in time order, parts contiguous.

        δ_t = r_t + γ V_{t+1} − V_t,   A_t = δ_t + γλ A_{t+1};   returns A and A + V

    V after a part's last row is 0, or `tail_N` of that row. Rows are decisions only, so no recursion ever crosses an
    observation (pitfall 7).
    """
    adv = segment.scan(errors(reward_N, value_N, part_N, gamma, tail_N), gamma * lam, part_N)
    return adv, adv + value_N


def errors(
    reward_N: Tensor, value_N: Tensor, part_N: Tensor, gamma: float | Tensor, tail_N: Tensor | None = None
) -> Tensor:
    """δ_t = r_t + γ V_{t+1} − V_t, what the critic did not foresee; V after the last row as for `gae`."""
    after = segment.lag(value_N, -1, part_N)
    if tail_N is not None:
        after = after + ends(part_N) * tail_N
    return (after * gamma).add_(reward_N).sub_(value_N)
