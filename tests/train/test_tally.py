"""Sums and counts of an optimiser step: merging adds means, and keeps the larger of two maxima."""

from gruppo.train.learner import Tally


def test_merging_adds_sums_and_keeps_the_larger_maximum() -> None:
    tally, other = Tally(), Tally()
    tally.add("gap", 1.0, 2)
    tally.most("gap_max", 0.4)
    other.add("gap", 2.0, 4)
    other.most("gap_max", 0.3)
    tally.merge(other)
    assert tally.means() == {"gap": 0.5, "gap_max": 0.4}
