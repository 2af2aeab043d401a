import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gruppo.policies import packed
from gruppo.policies.layout import WASTE, cuts, layout_of


@given(lengths=st.lists(st.integers(0, 200), min_size=1, max_size=60))
def test_cells_hold_every_position_once_with_bounded_waste(lengths):
    inputs = packed([np.zeros(n, np.int64) for n in lengths])
    layout = layout_of(inputs, context=1000)
    total, cells = sum(lengths), sum(rows * size for rows, size in layout.buckets)
    assert len(layout.row_C) == cells <= WASTE * total
    assert layout.row_C[layout.cell_M].tolist() == list(range(total))
    start = 0
    for rows, size in layout.buckets:
        lines = layout.row_C[start : start + rows * size].view(rows, size)
        for line in lines:
            seq = inputs.seq_M[line]
            assert (seq == seq[0]).all()  # one sequence a line, from its first position, then its last repeated
            n = lengths[int(seq[0])]
            assert inputs.pos_M[line].tolist() == [min(t, n - 1) for t in range(size)]
        start += rows * size


def test_equal_lengths_move_nothing():
    layout = layout_of(packed([np.zeros(5, np.int64)] * 3), context=10)
    assert layout.even
    assert layout.buckets == ((3, 5),)


def test_cuts_are_neighbours_within_the_budget():
    assert list(cuts([3, 3, 9, 1, 1], 6)) == [(0, 2), (2, 3), (3, 5)]
    assert list(cuts([], 6)) == []
