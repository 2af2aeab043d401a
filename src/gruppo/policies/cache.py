"""Keys and values of the rows that are being decoded."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import segment


@dataclass
class Cache:
    """One slot a row. What lies beyond a row's own position is never read, but must be finite (0 · NaN is NaN)."""

    kv: Tensor  # (layers, 2, rows, span, width)

    @property
    def span(self) -> int:
        return self.kv.shape[3]

    def put(self, row_B: Tensor, kv_M: Tensor, start_B: Tensor, length_B: Tensor) -> None:
        """Copy pieces [start, start + length) of a packed prefill to the beginning of rows; pieces may repeat."""
        self.reserve(int(length_B.max()))
        to, at = segment.ranges(row_B * self.span, length_B), segment.ranges(start_B, length_B)
        # Table by table: on a CPU each piece is still in the cache of the processor when it is written.
        for table, piece in zip(self.kv.flatten(0, 1), kv_M.flatten(0, 1), strict=True):
            table.view(-1, table.shape[-1]).index_copy_(0, to, piece.index_select(0, at))

    def move(self, source: Tensor, target: Tensor, span: int) -> None:
        """Copy rows `source` over rows `target`, as far as `span`."""
        kv = self.kv[:, :, :, :span]
        kv.index_copy_(2, target, kv.index_select(2, source))

    def reserve(self, span: int) -> None:
        """Make room for `span` positions. Grows by half, so that each position is copied a bounded number of times."""
        if span <= self.span:
            return
        layers, two, rows, old, width = self.kv.shape
        kv = self.kv.new_zeros(layers, two, rows, max(span, old + old // 2), width)
        kv[:, :, :, :old] = self.kv
        self.kv = kv


def new_cache(layers: int, rows: int, span: int, width: int, like: Tensor) -> Cache:
    return Cache(torch.zeros(layers, 2, rows, span, width, dtype=like.dtype, device=like.device))
