"""Advantages: how much better than what was to be expected. Degenerate groups are defined here, once.

A group of one, and a group of equal rewards, have an advantage of exactly 0; rows outside `where` (failed, unfinished
or unused episodes) have 0 and are in no statistic.
"""

import torch
from torch import Tensor

from gruppo.data import Key, centre, gather, segment


def z_score(x: Tensor, key: Key, *, where: Tensor | None = None, eps: float = 1e-6, ddof: int = 1) -> Tensor:
    """(x − mean) / (std + eps) inside each part; 0 where the part has at most `ddof` rows, or equal ones."""
    std = gather(x, key, "std", where=where, ddof=ddof)  # 0 for at most ddof rows
    varied = std > 0
    scale = torch.where(varied, std + eps, torch.ones_like(std))  # so that eps = 0 is no 0/0
    z = centre(x, key, where=where) / scale[key.index]
    return torch.where(varied[key.index], z, torch.zeros_like(z))


def leave_one_out(x: Tensor, key: Key, *, where: Tensor | None = None) -> Tensor:
    """x_i − mean of the others = n/(n−1) (x_i − mean); 0 in a part of one row."""
    n = gather(x, key, "count", where=where)[key.index].to(x.dtype)
    return torch.where(n > 1, n / (n - 1).clamp(min=1), torch.zeros_like(n)) * centre(x, key, where=where)


def whiten(x: Tensor, where: Tensor, eps: float = 1e-8) -> Tensor:
    """(x − mean) / sqrt(var + eps) over the rows in `where`, var with n − 1; fewer than two rows stay as they are."""
    rows = x[where]
    if len(rows) >= 2:
        rows = rows - rows.min()  # equal rows are then exactly 0, and large offsets do not cancel
        rows = rows - rows.mean()
        rows = rows * torch.rsqrt((rows * rows).sum() / (len(rows) - 1) + eps)
    return torch.zeros_like(x).masked_scatter(where, rows)


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
    after = segment.lag(value_N, -1, part_N)
    if tail_N is not None:
        after = after + ends(part_N) * tail_N
    delta = (after * gamma).add_(reward_N).sub_(value_N)
    adv = segment.scan(delta, gamma * lam, part_N)
    return adv, adv + value_N
