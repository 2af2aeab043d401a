"""Data where a wrong number went unseen: `make mutants` had changed these lines, and no test failed."""

import numpy as np
import torch

from gruppo.data import pack, single_turn
from gruppo.data.pack import micro_rows


def test_other_columns_are_not_read_through_what_was_found_before() -> None:
    """Which row belongs to which is remembered by the batch; a batch with other columns finds it anew."""
    batch = pack(
        [single_turn(i, "t", f"g{i}", np.array([1]), np.array([5]), np.zeros(1, np.float32), 0) for i in range(3)]
    )
    x = torch.tensor([1.0, 2.0, 4.0])
    assert batch.gather(x, "N", "G").tolist() == [1.0, 2.0, 4.0]
    assert batch.with_columns(group_E=torch.tensor([2, 2, 0])).gather(x, "N", "G").tolist() == [4.0, 0.0, 3.0]


def test_equal_sequences_keep_the_order_of_the_batch() -> None:
    """Fifty times the same answer: whichever share a sequence falls into, it is not by the luck of a sort."""
    same = [single_turn(i, "t", "g", np.arange(1, 9), np.array([5, 6]), np.zeros(2, np.float32), 0) for i in range(50)]
    shares = micro_rows(pack(same, share=0.0), 10**6, shares=2)
    assert [i for share in shares for rows in share for i in rows.tolist()] == list(range(50))
