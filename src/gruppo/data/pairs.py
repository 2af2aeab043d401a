"""Preference pairs: which of two episodes is better.

A pair is a row of level P, outside the five nested levels. `win_P` and `lose_P` are rows of E, and `margin_P` is the
difference in reward. Credit writes these columns. A micro-batch keeps all pairs, since it keeps all episodes, but may
have the tokens of one side only: terms that read pairs are never additive. A minibatch keeps and renumbers the pairs
of which it has both episodes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import segment
from gruppo.data.levels import refuse_rows
from gruppo.data.segment import Key


@dataclass(frozen=True)
class Pairs:
    win_P: Tensor
    lose_P: Tensor
    margin_P: Tensor
    size_E: int = -1  # rows of E; -1: not known

    def __len__(self) -> int:
        return len(self.win_P)

    def gap(self, x_E: Tensor) -> Tensor:
        """x of the better episode minus x of the worse one."""
        self._refuse(x_E)
        return x_E.index_select(0, self.win_P) - x_E.index_select(0, self.lose_P)

    def both(self, x_E: Tensor) -> Tensor:
        """Pairs with both episodes in the mask."""
        self._refuse(x_E)
        return x_E[self.win_P] & x_E[self.lose_P]

    def _refuse(self, x_E: Tensor) -> None:
        if self.size_E >= 0:
            refuse_rows("x", x_E, "level E", self.size_E, "Give one value per row of E: pairs are of episodes.")

    def take(self, rows_P: Tensor) -> "Pairs":
        return Pairs(self.win_P[rows_P], self.lose_P[rows_P], self.margin_P[rows_P], self.size_E)

    def columns(self) -> dict[str, Tensor]:
        return {"win_P": self.win_P, "lose_P": self.lose_P, "margin_P": self.margin_P}


ROUNDING = 1e-9  # rewards that differ by less count as equal: they are rounded sums


def inside(key: Key, value: Tensor, where: Tensor, min_gap: float = 0.0) -> Pairs:
    """All pairs of rows in `where` of the same part whose values differ by more than `min_gap`, larger first."""
    rows = torch.nonzero(where)[:, 0]
    rows = rows[torch.argsort(key.index[rows], stable=True)]
    part = key.index[rows]
    start, length = segment.offsets(Key(part, key.size))
    win = torch.repeat_interleave(rows, length[part])
    lose = rows[segment.ranges(start[part], length[part])]
    margin = value[win] - value[lose]
    return Pairs(win, lose, margin).take(margin - min_gap > ROUNDING)


def widest(pairs: Pairs, part_P: Tensor, most: int, noise_P: Tensor) -> Pairs:
    """The `most` pairs of each part with the largest margins (0: all pairs); ties are broken by `noise_P`."""
    if not most or not len(pairs):
        return pairs
    rounded = torch.round(pairs.margin_P.double() / ROUNDING)
    order = torch.argsort(noise_P, stable=True)
    order = order[torch.argsort(rounded[order], stable=True, descending=True)]
    order = order[torch.argsort(part_P[order], stable=True)]
    start, length = segment.offsets(Key(part_P[order], int(part_P.max()) + 1))
    rank = torch.arange(len(order), device=order.device) - torch.repeat_interleave(start, length)
    return pairs.take(order[rank < most])


def renumbered(columns: Mapping[str, Tensor], rows_E: Tensor, size_E: int) -> dict[str, Tensor]:
    """The columns of level P for these episodes, renumbered; without the pairs of which only one is among them."""
    mine = {name: x for name, x in columns.items() if name.endswith("_P")}
    if not mine:
        return {}
    row_E = torch.full((size_E,), -1, dtype=torch.int64, device=rows_E.device)
    row_E[rows_E] = torch.arange(len(rows_E), device=rows_E.device)
    sides = {name: row_E[columns[name]] for name in ("win_P", "lose_P")}
    here = (sides["win_P"] >= 0) & (sides["lose_P"] >= 0)
    return {name: x[here] for name, x in {**mine, **sides}.items()}
