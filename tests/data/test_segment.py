"""Segment operations against loops that cannot be wrong."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making_episodes import LAW
from torch import Tensor

from gruppo.data import Key, centre, gather, key_of, lag, scan, segment
from gruppo.data.segment import ranges

HOWS = ["sum", "mean", "var", "std", "max", "min", "logsumexp", "logmeanexp"]
REAL = st.floats(-100, 100, width=64)
BROKEN = st.sampled_from([math.nan, math.inf, -math.inf])


@st.composite
def partitions(draw: Any, most: int = 24) -> tuple[list[int], int]:
    size = draw(st.integers(1, 6))
    return draw(st.lists(st.integers(0, size - 1), max_size=most)), size


@st.composite
def masked(draw: Any) -> tuple[list[float], list[bool], list[int], int]:
    """Values, a mask with NaN and infinities behind it, and a partition with empty parts."""
    index, size = draw(partitions())
    keep = draw(st.lists(st.booleans(), min_size=len(index), max_size=len(index)))
    return [draw(REAL if k else BROKEN) for k in keep], keep, index, size


def key(index: list[int], size: int) -> Key:
    return Key(torch.tensor(index, dtype=torch.int64), size)


def naive(values: list[float], how: str, ddof: int, min_size: int, fill: float) -> float:
    """One part, in plain Python."""
    n = len(values)
    if n < max(min_size, 1) or (how in ("var", "std") and n <= ddof):
        return fill
    if how in ("sum", "mean"):
        return math.fsum(values) / (n if how == "mean" else 1)
    if how in ("max", "min"):
        return max(values) if how == "max" else min(values)
    if how in ("var", "std"):
        mean = math.fsum(values) / n
        var = math.fsum((v - mean) ** 2 for v in values) / (n - ddof)
        return var if how == "var" else math.sqrt(var)
    top = max(values)
    total = top + math.log(math.fsum(math.exp(v - top) for v in values))
    return total - (math.log(n) if how == "logmeanexp" else 0)


def parts(values: list[Any], keep: list[bool], index: list[int], size: int) -> list[list[Any]]:
    return [[v for v, k, i in zip(values, keep, index, strict=True) if k and i == p] for p in range(size)]


@pytest.mark.parametrize("how", HOWS)
@LAW
@given(masked(), st.integers(0, 2), st.integers(0, 4), st.floats(-9, 9))
def test_gather_equals_a_loop_over_parts_whatever_lies_outside_the_mask(how, data, ddof, min_size, fill):
    x, keep, index, size = data
    got = gather(
        torch.tensor(x, dtype=torch.float64), key(index, size), how,
        where=torch.tensor(keep, dtype=torch.bool), ddof=ddof, min_size=min_size, fill=fill,
    )  # fmt: skip
    want = [naive(p, how, ddof, min_size, fill) for p in parts(x, keep, index, size)]
    assert got.tolist() == pytest.approx(want, rel=1e-12, abs=1e-12 if how != "std" else 1e-9)


def test_long_sums_of_float32_do_not_drift():
    x = torch.full((10**6,), 0.1)
    by = Key(torch.zeros(10**6, dtype=torch.int64), 1)
    assert gather(x, by, "mean").item() == pytest.approx(0.1, rel=1e-6)  # 0.10096 when carried in float32
    assert gather(x, by, "sum").item() == pytest.approx(1e5, rel=1e-6)
    assert gather(x, by, "sum").dtype == torch.float32


@LAW
@given(partitions(), st.sampled_from(HOWS), st.integers(0, 1), st.integers(0, 2**32 - 1))
def test_gather_of_a_table_is_gather_of_its_columns(partition, how, ddof, seed):
    index, size = partition
    x_NC = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(index), 3)))
    keep = torch.from_numpy(np.random.default_rng(seed + 1).random(len(index)) < 0.7)
    got = gather(x_NC, key(index, size), how, where=keep, ddof=ddof, min_size=2, fill=-1.0)
    columns = [
        gather(x_NC[:, c], key(index, size), how, where=keep, ddof=ddof, min_size=2, fill=-1.0) for c in range(3)
    ]
    assert torch.equal(got, torch.stack(columns, -1))


@LAW
@given(masked(), st.booleans())
def test_count_any_and_all_equal_a_loop_over_parts(data, table):
    x, keep, index, size = data
    bits = [v > 0 for v in x]
    where = torch.tensor(keep, dtype=torch.bool)
    x_N = torch.tensor(bits, dtype=torch.bool)
    x_N = torch.stack([x_N, ~x_N], -1) if table else x_N
    mine = parts(bits, keep, index, size)
    for how, python in (("any", any), ("all", all)):
        got = gather(x_N, key(index, size), how, where=where)
        assert (got[:, 0] if table else got).tolist() == [python(p) for p in mine]
        if table:
            assert got[:, 1].tolist() == [python(not v for v in p) for p in mine]
    assert gather(x_N, key(index, size), "count", where=where).tolist() == [len(p) for p in mine]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@LAW
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.floats(-1e6, 1e6, width=32), st.booleans())
def test_equal_values_have_no_variance_and_centre_to_exactly_zero(dtype, lengths, value, apart):
    index = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    x = torch.full((len(index),), value, dtype=dtype) + (index.to(dtype) * 0.1 if apart else 0)
    by = Key(index, len(lengths))
    assert (centre(x, by) == 0).all()
    assert (gather(x, by, "var") == 0).all() and (gather(x, by, "std", ddof=1) == 0).all()


@LAW
@given(masked(), st.sampled_from([0.0, 1e8, -1e8]), st.sampled_from([1.0, 1e-6]))
def test_centre_is_exact_under_large_offsets(data, offset, scale):
    x, keep, index, size = data
    x = [offset + v * scale for v in x]
    got = centre(torch.tensor(x, dtype=torch.float64), key(index, size), where=torch.tensor(keep, dtype=torch.bool))
    mine = parts(x, keep, index, size)
    for v, k, i, y in zip(x, keep, index, got.tolist(), strict=True):
        if not k:
            assert y == 0
            continue
        mean = sum(map(Fraction, mine[i])) / len(mine[i])
        spread = max(mine[i]) - min(mine[i])
        assert abs(y - float(Fraction(v) - mean)) <= 1e-14 * spread


@LAW
@given(masked())
def test_centre_of_a_table_is_centre_of_its_columns(data):
    x, keep, index, size = data
    x_N = torch.tensor(x, dtype=torch.float64)
    where = torch.tensor(keep, dtype=torch.bool)
    got = centre(torch.stack([x_N, -2 * x_N], -1), key(index, size), where=where)
    for c, column in enumerate((x_N, -2 * x_N)):
        assert torch.equal(got[:, c], centre(column, key(index, size), where=where))


@pytest.mark.parametrize("how", HOWS)
def test_gradients_of_gather_and_centre_equal_finite_differences(how):
    by = key([0, 2, 0, 2, 0, 3, 2], 4)  # part 1 is empty, part 3 a single row
    where = torch.tensor([True, True, True, True, True, True, False])
    x = torch.tensor([0.3, -1.0, 2.0, 0.7, 1.1, 0.4, 5.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: gather(v, by, how, where=where, ddof=1), x)
    assert torch.autograd.gradcheck(lambda v: centre(v, by, where=where), x)


@pytest.mark.parametrize("how", HOWS)
def test_a_broken_row_behind_the_mask_reaches_neither_values_nor_gradients(how):
    x = torch.tensor([1.0, -900.0, math.nan, math.inf, -math.inf], dtype=torch.float64, requires_grad=True)
    by, where = key([0, 1, 0, 1, 1], 2), torch.tensor([True, True, False, False, False])
    y = gather(x, by, how, where=where)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert y.isfinite().all() and slope.isfinite().all() and (slope[2:] == 0).all()


@pytest.mark.parametrize("ddof", [0, 1])
def test_the_gradient_of_std_is_finite_where_all_values_are_equal(ddof):
    x = torch.tensor([1.0, 1.0, 3.0], requires_grad=True)  # a flat part, and a single row
    (slope,) = torch.autograd.grad(gather(x, key([0, 0, 1], 2), "std", ddof=ddof).sum(), x)
    assert (slope == 0).all()


def test_no_rows_gather_to_fill():
    for how in HOWS:
        assert gather(torch.zeros(0), key([], 3), how, fill=7.0).tolist() == [7.0] * 3
    assert gather(torch.zeros(0), key([], 0)).shape == (0,)


# ---- keys


@LAW
@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 2**62), st.booleans()), max_size=30))
def test_a_key_is_a_dict_of_tuples(rows):
    columns = [torch.tensor([r[c] for r in rows], dtype=(torch.int64, torch.int64, torch.bool)[c]) for c in range(3)]
    got = key_of(*columns)
    numbers = got.index.tolist()
    seen: dict[Any, int] = {}
    for row, number in zip(rows, numbers, strict=True):
        assert seen.setdefault(row, number) == number
    assert len(set(seen.values())) == len(seen) == got.size and set(numbers) == set(range(got.size))


def test_a_key_of_huge_columns_does_not_overflow():
    x = torch.tensor([2**62, -(2**63), 2**63 - 1, 2**62])
    assert key_of(x, x, x, x).index.tolist() == key_of(x).index.tolist()


@pytest.mark.parametrize("columns", [(), (torch.zeros(3), torch.zeros(1)), (torch.zeros(3, 2),)])
def test_columns_that_do_not_match_make_no_key(columns):
    with pytest.raises(ValueError, match="one value per row"):
        key_of(*columns)


# ---- scan and lag


@st.composite
def runs(draw: Any) -> Tensor:
    """The part of each row: neighbours, in any numbering, some of one row."""
    lengths = draw(st.lists(st.integers(1, 20), max_size=6))
    names = draw(st.permutations(range(len(lengths))))
    return torch.tensor([n for n, k in zip(names, lengths, strict=True) for _ in range(k)], dtype=torch.int64)


def scanned(b: list[float], c: list[float], part: list[int]) -> list[tuple[float, float]]:
    """(y, Σ |terms|) of each row by the recursion itself."""
    out: list[tuple[float, float]] = [(0.0, 0.0)] * len(b)
    for t in reversed(range(len(b))):
        y, size = out[t + 1] if t + 1 < len(b) and part[t + 1] == part[t] else (0.0, 0.0)
        out[t] = (b[t] + c[t] * y, abs(b[t]) + abs(c[t]) * size)
    return out


@LAW
@given(runs(), st.integers(0, 2**32 - 1), st.sampled_from(["array", "number", "zeros and ones"]))
def test_scan_equals_the_recursion_to_twelve_digits(part, seed, kind):
    rng = np.random.default_rng(seed)
    b = torch.from_numpy(rng.normal(size=len(part)))
    c: Any = 0.97 if kind == "number" else torch.from_numpy(rng.uniform(-1.1, 1.1, len(part)))
    c = c.round() if kind == "zeros and ones" else c
    got = scan(b, c, part).tolist()
    steps = [c] * len(part) if isinstance(c, float) else c.tolist()
    for y, (want, size) in zip(got, scanned(b.tolist(), steps, part.tolist()), strict=True):
        assert abs(y - want) <= 1e-12 * size


@LAW
@given(runs(), st.integers(0, 2**32 - 1))
def test_scan_of_a_table_is_scan_of_its_columns(part, seed):
    b = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(part), 3)))
    c = torch.from_numpy(np.random.default_rng(seed).normal(size=len(part)))
    got = scan(b, c, part)
    assert all(torch.equal(got[:, i], scan(b[:, i], c, part)) for i in range(3))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_scan_lets_no_part_into_another(bad):
    part = torch.tensor([0, 0, 0, 1, 1, 2, 3, 3])
    b = torch.arange(8, dtype=torch.float64)
    b[3:5] = bad
    b.requires_grad_()
    c = torch.full((8,), 0.5, dtype=torch.float64)
    c[2] = c[5] = c[7] = math.nan  # at the end of a part, where no coefficient is used
    c.requires_grad_()
    y = scan(b, c, part)
    mine = part != 1
    assert y[mine].tolist() == [1.0, 2.0, 2.0, 5.0, 9.5, 7.0]
    slopes = torch.autograd.grad(y[mine].sum(), (b, c))
    assert all(s[mine].isfinite().all() for s in slopes)


def test_gradients_of_scan_equal_finite_differences():
    part = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2, 2])
    rng = np.random.default_rng(0)
    b, c = (torch.from_numpy(rng.normal(size=9)).requires_grad_() for _ in range(2))
    assert torch.autograd.gradcheck(lambda u, v: scan(u, v, part), (b, c))
    assert torch.autograd.gradcheck(lambda u: scan(u, 0.9, part), (b,))


def test_scan_of_whole_numbers_keeps_the_fractions_of_the_coefficient():
    assert scan(torch.tensor([1, 1, 1]), 0.5, torch.zeros(3, dtype=torch.int64)).tolist() == [1.75, 1.5, 1.0]


def test_scan_of_nothing_is_nothing():
    assert scan(torch.zeros(0), 0.5, torch.zeros(0, dtype=torch.int64)).shape == (0,)


@LAW
@given(runs(), st.integers(-25, 25), st.booleans())
def test_lag_is_the_value_k_rows_earlier_in_the_part(part, k, table):
    x = torch.arange(1, len(part) + 1)
    x = torch.stack([x, -x], -1) if table else x
    got = lag(x, k, part, fill=-7)
    for t, p in enumerate(part.tolist()):
        there = 0 <= t - k < len(part) and part[t - k] == p
        assert torch.equal(got[t], x[t - k] if there else torch.full_like(x[t], -7))


def test_lag_passes_gradients_to_the_row_it_came_from():
    x = torch.arange(5, dtype=torch.float64, requires_grad=True)
    part = torch.tensor([0, 0, 0, 1, 1])
    for k in (1, -1, 0, 9):
        assert torch.autograd.gradcheck(lambda v, k=k: lag(v, k, part), (x,))


@LAW
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 6)), max_size=10))
def test_ranges_is_a_chain_of_ranges(pairs):
    start, length = (torch.tensor([p[i] for p in pairs], dtype=torch.int64) for i in range(2))
    assert ranges(start, length).tolist() == [i for a, n in pairs for i in range(a, a + n)]


@pytest.mark.parametrize("block", [1, 3, 7])
def test_scan_in_blocks_is_scan_at_once(block, monkeypatch):
    part = torch.repeat_interleave(torch.arange(6), torch.tensor([1, 4, 2, 9, 1, 5]))
    generator = torch.Generator().manual_seed(0)
    b, c = torch.rand(2, len(part), generator=generator, dtype=torch.float64)
    whole = segment.scan(b, c, part)
    monkeypatch.setattr(segment, "SCAN_BLOCK", block)
    assert torch.allclose(segment.scan(b, c, part), whole, rtol=1e-14)
