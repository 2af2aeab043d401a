"""Segment operations at their edges: empty parts and tables, further dimensions, types, blocks, unused numbers."""

import pytest
import torch
from torch import Tensor

from gruppo.data import Key, centre, gather, key_of, lag, scan, segment
from gruppo.data.inputs import Inputs, Ragged, count_up
from gruppo.data.pairs import ROUNDING, Pairs, inside, renumbered, widest

KEY = Key(torch.tensor([0, 0, 2, 2, 2]), 4)  # part 1 and part 3 are empty
X = torch.tensor([1.0, 3.0, 2.0, 4.0, 9.0], dtype=torch.float64)
WIDE = torch.stack([X, 10 * X, -X], 1)  # three numbers a row
HOW = {
    "sum": [4.0, 15.0], "mean": [2.0, 5.0], "var": [1.0, 26 / 3], "max": [3.0, 9.0], "min": [1.0, 2.0],
}  # fmt: skip


@pytest.mark.parametrize("how", HOW)
def test_further_dimensions_are_gathered_each_on_its_own(how: segment.How) -> None:
    flat, wide = gather(X, KEY, how), gather(WIDE, KEY, how)
    assert flat.tolist() == pytest.approx([HOW[how][0], 0.0, HOW[how][1], 0.0]) and wide.shape == (4, 3)
    assert torch.allclose(wide[:, 0], flat) and torch.allclose(wide[:, 1], gather(10 * X, KEY, how))
    cube = WIDE.view(5, 3, 1).expand(5, 3, 2)
    assert torch.allclose(gather(cube, KEY, how)[:, :, 1], wide)


def test_what_is_not_enough_is_filled() -> None:
    """Also for a plain sum, whose quick way has no count."""
    assert gather(X, KEY, min_size=3, fill=7.0).tolist() == [7.0, 7.0, 15.0, 7.0]
    assert gather(X, KEY, min_size=2, fill=0.0).tolist() == [4.0, 0.0, 15.0, 0.0]
    assert gather(X, KEY, fill=1.0).tolist() == [4.0, 1.0, 15.0, 1.0]
    assert gather(X, Key(torch.tensor([0, 1, 1, 1, 1]), 2), min_size=2).tolist() == [0.0, 18.0]


@pytest.mark.parametrize("how", ["var", "std"])
def test_a_part_of_ddof_rows_has_no_deviation(how: segment.How) -> None:
    one = Key(torch.tensor([0, 1, 1, 2, 2]), 3)
    assert gather(X, one, how, ddof=1, fill=-1.0)[0] == -1.0 and gather(X, one, how, ddof=0, fill=-1.0)[0] == 0.0
    assert gather(X, one, how, ddof=2, fill=-1.0).tolist() == [-1.0] * 3
    assert gather(X, one, how, fill=-1.0)[1] == gather(X, one, how, ddof=0)[1] > 0


def test_counts_any_and_all() -> None:
    on = torch.tensor([True, False, True, True, True])
    assert gather(on, KEY, "any").tolist() == [True, False, True, False]
    assert gather(on, KEY, "all").tolist() == [False, True, True, True]
    assert gather(X, KEY, "count").tolist() == [2, 0, 3, 0] and gather(X, KEY, "count", where=on).tolist() == [
        1,
        0,
        3,
        0,
    ]


def test_exponentials() -> None:
    """Empty parts are `fill`; others log Σ e^x and log of the mean, whatever the size of x."""
    out = gather(X + 1000, KEY, "logsumexp", fill=-5.0)
    assert out.tolist() == pytest.approx(
        [1000 + float(torch.logsumexp(X[:2], 0)), -5.0, 1000 + float(torch.logsumexp(X[2:], 0)), -5.0]
    )
    mean = gather(X, KEY, "logmeanexp", where=torch.tensor([True, False, True, True, False]))
    assert mean.tolist() == pytest.approx([1.0, 0.0, float(torch.logsumexp(X[2:4], 0)) - 0.6931471805599453, 0.0])


def test_deviations_are_those_of_the_population_unless_told() -> None:
    x, std, count = segment.deviations(X, KEY)
    assert x.tolist() == [-1.0, 1.0, -3.0, -1.0, 4.0] and count.tolist() == [2, 0, 3, 0]
    assert std.tolist() == pytest.approx([1.0, 0.0, (26 / 3) ** 0.5, 0.0])
    assert segment.deviations(X, KEY, ddof=1)[1].tolist() == pytest.approx([2**0.5, 0.0, 13**0.5, 0.0])
    assert torch.equal(centre(WIDE, KEY)[:, 1], 10 * x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_types(dtype: torch.dtype) -> None:
    """Floats keep theirs; whole numbers and marks become the default float. A mask may cut anywhere."""
    x, real = X.to(dtype), dtype if dtype.is_floating_point else torch.get_default_dtype()
    where = torch.tensor([True, False, True, True, True])
    for how in ("sum", "mean", "var", "std", "max", "min", "logsumexp"):
        for cut in (None, where):
            assert gather(x, KEY, how, where=cut).dtype == real, how
    assert centre(x, KEY, where=where).dtype == segment.deviations(x, KEY)[1].dtype == real
    assert scan(x, 0.5, KEY.index).dtype == real and lag(x, 1, KEY.index).dtype == dtype


def test_large_whole_numbers_are_summed_exactly() -> None:
    big = torch.tensor([2**24 + 1, 1, 0, 0, 0], dtype=torch.float64)
    assert gather(big, KEY).tolist()[0] == 2**24 + 2
    ones = torch.full((300_000,), 0.1)
    assert float(gather(ones, Key(torch.zeros(300_000, dtype=torch.int64), 1))[0]) == pytest.approx(30_000, rel=1e-7)


def test_keys_of_several_columns() -> None:
    a, b = torch.tensor([5, 5, 3, 3, 5]), torch.tensor([0, 1, 0, 0, 1])
    key = key_of(a, b)
    assert key.index.tolist() == [1, 2, 0, 0, 2] and key.size == 3
    assert key_of(a[:0], b[:0]).size == 0
    alike = key_of(torch.tensor([0, 1, 0]), torch.tensor([1, 0, 0]))
    assert alike.size == 3, "(0, 1) and (1, 0) are not one"
    wide = key_of(*(torch.tensor([0, 1, 2, 0]) for _ in range(3)))
    assert wide.index.tolist() == [0, 1, 2, 0]


def test_nothing_at_all() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert (
        segment.ranges(none, none).tolist() == []
        and segment.ranges(torch.tensor([3]), torch.tensor([0])).tolist() == []
    )
    assert segment.ranges(torch.tensor([5, 1]), torch.tensor([2, 3])).tolist() == [5, 6, 1, 2, 3]
    assert scan(torch.zeros(0), 0.5, none).tolist() == [] and lag(torch.zeros(0), 1, none).tolist() == []
    assert gather(torch.zeros(0), Key(none, 2), "mean").tolist() == [0.0, 0.0]
    assert count_up(torch.tensor([0, 2, 0, 1])).tolist() == [1, 1, 3]


# scans and lags


def by_hand(b: list[float], c: list[float], part: list[int]) -> list[float]:
    out = [0.0] * len(b)
    for t in reversed(range(len(b))):
        later = out[t + 1] if t + 1 < len(b) and part[t + 1] == part[t] else 0.0
        out[t] = b[t] + c[t] * later
    return out


@pytest.mark.parametrize("block", [1, 2, 3, 4, 7, 100])
def test_blocks_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their size against that of the parts; and no block is longer than it must be."""
    monkeypatch.setattr(segment, "SCAN_BLOCK", block)
    part = torch.tensor([4, 4, 4, 5, 6, 6, 6, 6, 9, 9, 10, 11, 11])
    b, c = torch.arange(13, dtype=torch.float64) + 1, torch.linspace(0.1, 0.9, 13, dtype=torch.float64)
    seen: list[int] = []
    plain = segment._scan_block
    monkeypatch.setattr(segment, "_scan_block", lambda *a: (seen.append(len(a[0])), plain(*a))[1])
    assert scan(b, c, part).tolist() == pytest.approx(by_hand(b.tolist(), c.tolist(), part.tolist()))
    assert sum(seen) == 13 and max(seen) <= max(block + 3, 4) and (len(seen) > 1) == (block < 13)


def test_blocks_are_large() -> None:
    assert segment.SCAN_BLOCK == 65536 and scan(torch.ones(2), 1.0, torch.zeros(2)).tolist() == [2.0, 1.0]


def test_a_scan_over_numbers_far_from_zero_and_of_one_row_each() -> None:
    """Parts may have any numbers; memory goes by how many there are."""
    part = torch.tensor([10**9, 10**9, 10**9 + 1, 10**9 + 2])
    assert scan(torch.ones(4), 0.5, part).tolist() == [1.5, 1.0, 1.0, 1.0]
    negative = torch.tensor([-7, -7, -6])
    assert scan(torch.ones(3), 0.5, negative).tolist() == [1.5, 1.0, 1.0]


def test_a_scan_makes_a_tensor_of_its_own() -> None:
    b = torch.ones(3)
    y = scan(b, 0.5, torch.tensor([0, 1, 2]))
    y += 1
    assert b.tolist() == [1.0] * 3


def test_coefficients_of_each_number() -> None:
    part, b = torch.tensor([0, 0, 0]), torch.ones(3, 2)
    c = torch.tensor([[0.5, 0.0], [0.5, 0.0], [0.5, 0.0]])
    assert scan(b, c, part).tolist() == [[1.75, 1.0], [1.5, 1.0], [1.0, 1.0]]
    assert scan(b, torch.tensor([0.5, 0.5, 0.5]), part)[:, 1].tolist() == [1.75, 1.5, 1.0]
    assert scan(b, 0.5, part)[:, 0].tolist() == [1.75, 1.5, 1.0]


def test_what_is_not_finite_stays_in_its_part() -> None:
    nan = float("nan")
    b = torch.tensor([1.0, 1.0, nan, 1.0, 1.0, 1.0, 1.0])
    y = scan(b, 0.5, torch.tensor([0, 0, 1, 2, 2, 2, 2]))
    assert y[:2].tolist() == [1.5, 1.0] and y[3:].tolist() == [1.875, 1.75, 1.5, 1.0] and bool(torch.isnan(y[2]))


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 5, 6, -1, -2, -4, -5, -6])
def test_lags_by_hand(k: int) -> None:
    part = torch.tensor([0, 0, 0, 1, 1])
    x = torch.tensor([1, 2, 3, 4, 5])
    wanted = [int(x[i - k]) if 0 <= i - k < 5 and part[i - k] == part[i] else -9 for i in range(5)]
    out = lag(x, k, part, fill=-9)
    assert out.tolist() == wanted and out.data_ptr() != x.data_ptr()
    assert lag(torch.stack([x, 2 * x], 1), k, part, fill=-9)[:, 0].tolist() == wanted
    assert lag(x, k, part).tolist() == [0 if w == -9 else w for w in wanted]


# ragged rows, inputs and pairs


def test_rows_of_a_ragged_table() -> None:
    table = Ragged(torch.tensor([2, 0, 3]), torch.tensor([1, 2, 7, 8, 9]))
    taken = table.take(torch.tensor([2, 1, 0, 2]))
    assert taken.length.tolist() == [3, 0, 2, 3] and taken.values.tolist() == [7, 8, 9, 1, 2, 7, 8, 9]


def test_inputs_without_shared_pieces_are_their_own_tree() -> None:
    rows = torch.arange(3)
    plain = Inputs(rows, rows, torch.zeros(3, dtype=torch.int64), rows - 1, rows[1:])
    assert plain.tree() == (plain, None)
    alone = Inputs(rows, rows, plain.seq_M, rows - 1, rows[1:], node_M=rows)
    assert alone.tree() == (alone, None)


def pairs(value: list[float], part: list[int], min_gap: float = 0.0) -> set[tuple[int, int]]:
    key = Key(torch.tensor(part), max(part) + 1)
    found = inside(key, torch.tensor(value, dtype=torch.float64), torch.ones(len(value), dtype=torch.bool), min_gap)
    return {*zip(found.win_P.tolist(), found.lose_P.tolist(), strict=True)}


def test_a_gap_of_rounding_is_none() -> None:
    assert pairs([1.0, 1.0 + ROUNDING / 2, 0.0], [0, 0, 0]) == {(0, 2), (1, 2)}
    assert pairs([1.0, 0.5], [0, 0]) == {(0, 1)} and pairs([1.0, 0.5], [0, 1]) == set()
    assert pairs([1.0, 0.5], [0, 0], 0.5) == set() and pairs([1.0, 0.5], [0, 0], 0.4) == {(0, 1)}
    key, x = Key(torch.zeros(2, dtype=torch.int64), 1), torch.tensor([0.5, 0.0], dtype=torch.float64)
    assert len(inside(key, x, torch.ones(2, dtype=torch.bool))) == 1, "any gap, unless told"


def test_the_widest_of_each_part_and_luck_between_equals() -> None:
    rows = torch.arange(6)
    p = Pairs(rows, rows + 10, torch.tensor([1.0, 3.0, 3.0 + ROUNDING / 4, 2.0, 5.0, 5.0]))
    part = torch.tensor([0, 0, 0, 1, 1, 1])

    def kept(most: int, luck: list[float]) -> list[int]:
        return sorted(widest(p, part, most, torch.tensor(luck)).win_P.tolist())

    assert kept(1, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]) == [1, 4] and kept(1, [0.1, 0.4, 0.3, 0.4, 0.6, 0.5]) == [2, 5]
    assert kept(2, [0.5] * 6) == [1, 2, 4, 5] and kept(0, [0.5] * 6) == kept(3, [0.5] * 6) == [0, 1, 2, 3, 4, 5]


def test_pairs_that_lost_an_end_are_gone() -> None:
    def part(rows: list[int]) -> dict[str, list[float]]:
        columns: dict[str, Tensor] = {
            "win_P": torch.tensor([3, 0, 2]),
            "lose_P": torch.tensor([0, 1, 3]),
            "margin_P": torch.tensor([1.0, 2.0, 3.0]),
        }
        return {k: v.tolist() for k, v in renumbered(columns, torch.tensor(rows), 4).items()}

    assert part([3, 0]) == {"win_P": [0], "lose_P": [1], "margin_P": [1.0]}
    assert part([2, 3]) == {"win_P": [0], "lose_P": [1], "margin_P": [3.0]}
    assert part([1, 2]) == {"win_P": [], "lose_P": [], "margin_P": []}
    assert renumbered({"x_N": torch.zeros(1)}, torch.tensor([0]), 1) == {}
