"""Keys and values: the cache of the rows being decoded, and what a forward reads from it and adds to it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gruppo.policies.layout import additive


@dataclass
class Cache:
    """One slot per row; live rows come first.

    Columns beyond a row's own position are masked but must be finite, since 0 · NaN is NaN. So the first `clean`
    columns of live rows are always written and nothing else is touched: zeroing everything took half the time of a
    call whose longest row was far longer than the mean.
    """

    kv: Tensor  # (layers, 2, rows, span, width)
    clean: int = 0
    closed: bool = False  # no rows wait to be added, so memory of finished rows may be freed

    def put(self, live: int, kv_M: Tensor, start_B: Tensor, length_B: Tensor, longest: int) -> None:
        """After the `live` rows, add B rows that hold slices [start, start + length) of a packed prefill."""
        self.closed = False
        self.heighten(live + len(start_B), live)
        self.widen(longest, live)
        column = torch.arange(self.clean, device=start_B.device)
        at = start_B[:, None] + torch.minimum(column, length_B[:, None] - 1)  # beyond it: anything finite
        rows = slice(live, live + len(at))
        # Table by table: on a CPU each piece is still in the processor's cache when it is written.
        for table, piece in zip(self.kv.flatten(0, 1), kv_M.flatten(0, 1), strict=True):
            table[rows, : self.clean] = piece.index_select(0, at.flatten()).view(*at.shape, -1)

    def move(self, source: Tensor, target: Tensor, span: int) -> None:
        """Copy the first `span` columns of rows `source` over rows `target`."""
        kv = self.kv[:, :, :, :span]
        kv.index_copy_(2, target, kv.index_select(2, source))

    def heighten(self, needed: int, live: int) -> None:
        """Make room for `needed` rows. Twice as many as before, so rows are seldom copied."""
        layers, two, rows, span, width = self.kv.shape
        if needed > rows:
            kv = self.kv.new_empty(layers, two, max(needed, 2 * rows), span, width)
            kv[:, :, :live, : self.clean] = self.kv[:, :, :live, : self.clean]
            self.kv = kv

    def widen(self, span: int, live: int) -> None:
        """Make the first `span` columns usable. Memory grows by half, so columns are seldom copied."""
        layers, two, rows, old, width = self.kv.shape
        if span > old:
            rows = live if self.closed else rows
            kv = self.kv.new_empty(layers, two, rows, max(span, old + old // 2), width)
            kv[:, :, :live, : self.clean] = self.kv[:, :, :live, : self.clean]
            self.kv = kv
        if span > self.clean:
            self.kv[:, :, :live, self.clean : span] = 0
            self.clean = span


def new_cache(layers: int, rows: int, span: int, width: int, like: Tensor) -> Cache:
    return Cache(torch.empty(layers, 2, rows, span, width, dtype=like.dtype, device=like.device))


# Arguments of `forward`. They are no containers of tensors for PyTorch, so wrappers pass them on as they are.


@dataclass
class Kept:
    """Filled by a forward with the keys and values of every layer: k_1, v_1, k_2, …, each (M, width)."""

    kv: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """One new token for each of the first rows of a cache."""

    ids_M: Tensor
    pos_M: Tensor
    cache: Cache
    span: int  # largest position + 1
    cell_M: Tensor  # index of each new token in the flattened (rows, span) of the cache

    @classmethod
    def of(cls, ids_B: Tensor, pos_B: Tensor, cache: Cache, span: int | None) -> "Step":
        span = int(pos_B.max()) + 1 if span is None else span
        rows = len(ids_B)
        cache.widen(span, rows)
        cell_B = torch.arange(rows, device=pos_B.device) * cache.kv.shape[3] + pos_B
        return cls(ids_B, pos_B, cache, span, cell_B)

    def mask(self, dtype: torch.dtype) -> Tensor:
        """(B, 1, 1, span), additive."""
        column = torch.arange(self.span, device=self.pos_M.device)
        return additive(column <= self.pos_M[:, None], dtype)[:, None, None]

    def write(self, layer: int, *new: Tensor) -> list[Tensor]:
        """Add the keys and values (B, width) of the new tokens of a layer; all of its rows so far, (B, span, width)."""
        out: list[Tensor] = []
        for table, x_BD in zip(self.cache.kv[layer], new, strict=True):
            mine = table[..., : x_BD.shape[-1]]  # layers may be narrower than the table
            mine.flatten(0, 1).index_copy_(0, self.cell_M, x_BD)
            out.append(mine[: len(x_BD), : self.span])
        return out
