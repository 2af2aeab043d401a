"""Relations over rows: which episode is better than which (design 3.13).

A pair is a row of level P, beside the five levels: `win_P` and `lose_P` are rows of E, `margin_P` says by how much.
Like any column they are made by credit and travel with the batch. A micro-batch keeps them all, because it keeps the
table of episodes: it may cut a pair, so what reads pairs is never additive. A minibatch keeps those whose two ends it
has, and numbers them anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import segment
from gruppo.data.segment import Key


@dataclass(frozen=True)
class Pairs:
    win_P: Tensor
    lose_P: Tensor
    margin_P: Tensor

    def __len__(self) -> int:
        return len(self.win_P)

    def gap(self, x_E: Tensor) -> Tensor:
        """x of the better one less x of the worse one."""
        return x_E.index_select(0, self.win_P) - x_E.index_select(0, self.lose_P)

    def both(self, x_E: Tensor) -> Tensor:
        """Pairs of which both ends are marked."""
        return x_E[self.win_P] & x_E[self.lose_P]

    def take(self, rows_P: Tensor) -> "Pairs":
        return Pairs(self.win_P[rows_P], self.lose_P[rows_P], self.margin_P[rows_P])

    def columns(self) -> dict[str, Tensor]:
        return {"win_P": self.win_P, "lose_P": self.lose_P, "margin_P": self.margin_P}


ROUNDING = 1e-9  # values that differ by less are equal: rewards are sums, and sums are rounded


def inside(key: Key, value: Tensor, where: Tensor, min_gap: float = 0.0) -> Pairs:
    """All pairs of rows in `where` of one part whose values differ by more than `min_gap`, the larger value first."""
    rows = torch.nonzero(where)[:, 0]
    rows = rows[torch.argsort(key.index[rows], stable=True)]
    part = key.index[rows]
    start, length = segment.offsets(Key(part, key.size))
    win = torch.repeat_interleave(rows, length[part])
    lose = rows[segment.ranges(start[part], length[part])]
    margin = value[win] - value[lose]
    return Pairs(win, lose, margin).take(margin - min_gap > ROUNDING)


def widest(pairs: Pairs, part_P: Tensor, most: int, luck_P: Tensor) -> Pairs:
    """The `most` pairs of each part with the largest margin (0: all); equal ones by `luck_P`."""
    if not most or not len(pairs):
        return pairs
    rounded = torch.round(pairs.margin_P.double() / ROUNDING)
    order = torch.argsort(luck_P, stable=True)
    order = order[torch.argsort(rounded[order], stable=True, descending=True)]
    order = order[torch.argsort(part_P[order], stable=True)]
    start, length = segment.offsets(Key(part_P[order], int(part_P.max()) + 1))
    rank = torch.arange(len(order), device=order.device) - torch.repeat_interleave(start, length)
    return pairs.take(order[rank < most])


def renumbered(columns: Mapping[str, Tensor], rows_E: Tensor, size_E: int) -> dict[str, Tensor]:
    """The columns of level P for these episodes only: pairs that lost an end are left out, and ends numbered anew."""
    mine = {name: x for name, x in columns.items() if name.endswith("_P")}
    if not mine:
        return {}
    place = torch.full((size_E,), -1, dtype=torch.int64, device=rows_E.device)
    place[rows_E] = torch.arange(len(rows_E), device=rows_E.device)
    ends = {name: place[columns[name]] for name in ("win_P", "lose_P")}
    here = (ends["win_P"] >= 0) & (ends["lose_P"] >= 0)
    return {name: x[here] for name, x in {**mine, **ends}.items()}
