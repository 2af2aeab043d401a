"""Keys and values on a GPU, in pages of a pool whose size is fixed. Rows that share a prefix share its pages."""

import numpy as np
import torch
from torch import Tensor

from gruppo.kernels.attention import PAGE

SCRATCH = 0  # the page of rows that are not in use


def pages_for(tokens: int) -> int:
    return -(-tokens // PAGE)


class Pool:
    """`kv` is (layers, 2, pages, kv_heads, PAGE, dim). Each page counts the rows that use it."""

    def __init__(
        self, layers: int, pages: int, kv_heads: int, dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.kv = torch.zeros(layers, 2, pages, kv_heads, PAGE, dim, dtype=dtype, device=device)
        self.full = False  # as large as memory allows
        self.peak = 0  # pages in use at once so far
        self.users = np.zeros(pages, np.int64)
        self.users[SCRATCH] = 1
        self._free = list(range(pages - 1, SCRATCH, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Pages for one user."""
        if count > self.free:
            raise ValueError(f"{count} pages are wanted, and {self.free} of {len(self.users) - 1} are free.")
        pages = [self._free.pop() for _ in range(count)]
        self.users[pages] += 1
        self.peak = max(self.peak, len(self.users) - 1 - self.free)
        return pages

    def share(self, pages: list[int]) -> None:
        """One more user for each."""
        self.users[pages] += 1

    def drop(self, pages: list[int]) -> None:
        """One user less for each; a page without users is free."""
        self.users[pages] -= 1
        assert (self.users[pages] >= 0).all()
        self._free += [p for p in pages if self.users[p] == 0]

    def write(self, kv_M: Tensor, page_M: Tensor, cell_M: Tensor) -> None:
        """Keys and values (layers, 2, M, width) into cells of pages."""
        by_cell = self.kv.transpose(3, 4)  # (layers, 2, pages, PAGE, kv_heads, dim)
        by_cell[:, :, page_M, cell_M] = kv_M.unflatten(-1, self.kv.shape[3::2])

    def copy(self, source: list[int], target: list[int]) -> None:
        """The contents of some pages into others."""
        if source:
            at, to = (torch.tensor(x, device=self.kv.device) for x in (source, target))
            self.kv.index_copy_(2, to, self.kv.index_select(2, at))
