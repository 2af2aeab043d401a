"""Worked numbers of forking_tokens and d3s: which answers and tokens are chosen.

Numbers marked "card" were worked from the authors' code or the paper's example; the others are plain sums here.
"""

from gruppo.stages.select import share_of

# forking_tokens


def test_the_share_is_rounded_up() -> None:
    """ceil(ρ n), as the authors' code has it; 0.29 · 100 = 28.999… is 29; at least one, at most all."""
    assert [share_of(0.2, n) for n in (1, 4, 5, 6, 7, 10, 11)] == [1, 1, 1, 2, 2, 2, 3]
    assert (share_of(0.29, 100), share_of(0.07, 100), share_of(1.0, 7), share_of(0.0, 7), share_of(0.2, 0)) == (
        29, 7, 7, 1, 0,
    )  # fmt: skip
