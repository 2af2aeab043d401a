"""Advantage estimators. Degenerate groups are defined here, once.

In a group of one or of equal rewards, advantages are exactly 0. Rows outside `where` (failed, unfinished or unused
episodes) have an advantage of 0 and enter no statistic.
"""

import torch
from torch import Tensor

from gruppo.data import Key, gather, segment


def z_score(x: Tensor, key: Key, *, where: Tensor | None = None, eps: float = 1e-6, ddof: int = 1) -> Tensor:
    """(x − mean) / (std + eps) inside each part; 0 if the part has at most `ddof` rows, or only equal ones.

    Several columns are normalised separately.
    """
    centred, std, n = segment.deviations(x, key, where=where, ddof=ddof)
    varied = (std > 0) & (n > ddof).view(-1, *[1] * (x.dim() - 1))
    # Dividing by infinity gives 0, even for eps = 0.
    return centred / key.spread(torch.where(varied, std + eps, torch.full_like(std, float("inf"))))


def alone(key: Key, where: Tensor) -> Tensor:
    """Rows that are the only one of their part in `where`: some trainers take the mean for 0 there."""
    return where & key.spread(gather(where, key, "count", where=where) == 1)


def raw_if_alone(adv: Tensor, x: Tensor, key: Key, where: Tensor) -> Tensor:
    """`adv`, but x itself where it is the only row of its part."""
    return torch.where(alone(key, where), x, adv)


def leave_one_out(x: Tensor, key: Key, *, where: Tensor | None = None) -> Tensor:
    """x_i − mean of the other rows = n/(n−1) (x_i − mean); 0 in a part of one row."""
    centred, _, count = segment.deviations(x, key, where=where)
    n = count.to(centred.dtype)
    return centred * key.spread(torch.where(n > 1, n / (n - 1).clamp(min=1), torch.zeros_like(n)))


def weighted_centre(x: Tensor, weight: Tensor, key: Key, *, where: Tensor | None = None) -> Tensor:
    """x − Σ w x / Σ w inside each part; 0 outside `where`, and in a part with zero weight or equal rows."""
    low = key.spread(gather(x, key, "min", where=where))
    above = x - low  # so that equal rows are exactly 0
    total = gather(weight, key, "sum", where=where)
    mean = gather(weight * above, key, "sum", where=where) / torch.where(total > 0, total, torch.ones_like(total))
    known = key.spread(total > 0) if where is None else where & key.spread(total > 0)
    return torch.where(known, above - key.spread(mean), torch.zeros_like(above))


def lead(x: Tensor, key: Key, k: int, *, where: Tensor | None = None) -> Tensor:
    """A row's contribution to the best of k: max with it minus max without it, averaged over its k − 1 companions.

    Σ over the increments of the sorted part up to the row, (x_(m) − x_(m−1)) C(m, k−1) / C(n−1, k−1), m = 0 … n−1: an
    increment is weighted by the probability that all companions are below it. If a part has fewer than k rows, all
    the others are companions; a single row has 0.
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
    step = (sorted_x - segment.lag(sorted_x, -1, part)) * chance.to(x.dtype)  # that of the lowest row is 0
    return torch.zeros_like(x).index_copy(0, rows, segment.scan(step, 1.0, part))


def _choices(a: Tensor, k: Tensor, b: Tensor) -> Tensor:
    """C(a, k) / C(b, k), for a ≥ k."""

    def log_falling(n: Tensor) -> Tensor:
        return torch.lgamma(n.double() + 1) - torch.lgamma((n - k).clamp(min=0).double() + 1)

    return torch.exp(log_falling(a) - log_falling(b))


def whiten(x: Tensor, where: Tensor, eps: float = 1e-8) -> Tensor:
    """(x − mean) / sqrt(var + eps) over the rows in `where`, var with n − 1; fewer than two rows are unchanged."""
    zero, n = torch.zeros((), dtype=x.dtype, device=x.device), int(where.sum())
    if n < 2:
        return torch.where(where, x, zero)
    low = torch.where(where, x, torch.full_like(zero, float("inf"))).min()
    x = torch.where(where, x - low, zero)  # equal rows become exactly 0, and large offsets do not cancel
    x = torch.where(where, x - x.sum() / n, zero)
    return x * torch.rsqrt((x * x).sum() / (n - 1) + eps)


def ends(part_N: Tensor) -> Tensor:
    """1 at the last row of each part, else 0; parts are contiguous."""
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
    """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438); rows in time order, parts contiguous.

        δ_t = r_t + γ V_{t+1} − V_t,   A_t = δ_t + γλ A_{t+1};   returns A and A + V

    V after the last row of a part is 0, or `tail_N` of that row. Rows are decisions only, so the recursion never
    crosses an observation (pitfall 7).
    """
    adv = segment.scan(errors(reward_N, value_N, part_N, gamma, tail_N), gamma * lam, part_N)
    return adv, adv + value_N


def errors(
    reward_N: Tensor, value_N: Tensor, part_N: Tensor, gamma: float | Tensor, tail_N: Tensor | None = None
) -> Tensor:
    """The temporal-difference errors δ_t = r_t + γ V_{t+1} − V_t; V after the last row as in `gae`."""
    after = segment.lag(value_N, -1, part_N)
    if tail_N is not None:
        after = after + ends(part_N) * tail_N
    return (after * gamma).add_(reward_N).sub_(value_N)
