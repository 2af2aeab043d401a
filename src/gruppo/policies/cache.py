"""Keys and values of the rows that are being decoded."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Cache:
    """One slot a row; live rows come first.

    What lies beyond a row's own position is masked, but must be finite (0 · NaN is NaN). So the first `clean`
    columns of live rows are always written, and no other memory is touched: zeroing it all at once took half
    the time of a call whose longest row was far longer than its mean.
    """

    kv: Tensor  # (layers, 2, rows, span, width)
    clean: int = 0
    closed: bool = False  # no row will be put any more: memory of dead rows may go

    def put(self, live: int, kv_M: Tensor, start_B: Tensor, length_B: Tensor, longest: int) -> None:
        """After `live` rows, add B that begin with pieces [start, start + length) of a packed prefill."""
        self.widen(longest, live)
        column = torch.arange(self.clean, device=start_B.device)
        at = start_B[:, None] + torch.minimum(column, length_B[:, None] - 1)  # beyond it: anything finite
        rows = slice(live, live + len(at))
        # Table by table: on a CPU each piece is still in the processor's cache when it is written.
        for table, piece in zip(self.kv.flatten(0, 1), kv_M.flatten(0, 1), strict=True):
            table[rows, : self.clean] = piece.index_select(0, at.flatten()).view(*at.shape, -1)

    def move(self, source: Tensor, target: Tensor, span: int) -> None:
        """Copy rows `source` over rows `target`, as far as `span`."""
        kv = self.kv[:, :, :, :span]
        kv.index_copy_(2, target, kv.index_select(2, source))

    def widen(self, span: int, live: int) -> None:
        """Make the first `span` columns usable. Memory grows by half, so a column is seldom copied."""
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
