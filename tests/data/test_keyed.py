"""Keyed randomness: a draw depends on its key, on all of its key, and on nothing else."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from making_episodes import LAW

from gruppo.data import key_hash, name_hash, permutation, uniform

INT64 = st.integers(-(2**63), 2**63 - 1)
PART = st.one_of(INT64, st.text(max_size=5))
KEYS = st.lists(PART, max_size=4)


def chi_square(counts: np.ndarray) -> float:
    """(χ² - k) / sqrt(2k): about standard normal under uniformity."""
    expected, k = counts.mean(), counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - k) / np.sqrt(2 * k))


@LAW
@given(KEYS, st.lists(INT64, min_size=1, max_size=5), KEYS)
def test_a_tensor_of_keys_draws_what_its_numbers_draw(before, numbers, after):
    rows = torch.tensor(numbers)
    assert key_hash(*before, rows, *after).tolist() == [key_hash(*before, n, *after) for n in numbers]
    assert uniform(*before, rows, *after).tolist() == [uniform(*before, n, *after) for n in numbers]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool])
def test_the_type_of_whole_numbers_does_not_matter(dtype):
    rows = torch.tensor([0, 1, 1, 0], dtype=dtype)
    assert key_hash("a", rows).tolist() == [key_hash("a", int(n)) for n in rows]
    assert key_hash("a", np.int64(1), True) == key_hash("a", 1, 1)


def test_a_key_of_fractions_is_refused():
    with pytest.raises(ValueError, match="whole numbers"):
        uniform("a", torch.tensor([0.5]))
    with pytest.raises(TypeError):
        uniform("a", 0.5)  # type: ignore[arg-type]


@LAW
@given(KEYS, st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_order_and_shape_of_the_rows_do_not_matter(parts, n, seed):
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    rows = torch.arange(n) * 7 - 5
    assert torch.equal(uniform(*parts, rows)[order], uniform(*parts, rows[order]))
    assert torch.equal(uniform(*parts, rows).view(n, 1), uniform(*parts, rows.view(n, 1)))
    table = uniform(*parts, rows.view(n, 1), torch.arange(3))  # parts broadcast
    assert table.shape == (n, 3) and table[n - 1, 2] == uniform(*parts, int(rows[-1]), 2)


@LAW
@given(KEYS)
def test_draws_lie_in_the_half_open_unit_interval(parts):
    u = uniform(*parts)
    assert isinstance(u, float) and 0 <= u < 1


@LAW
@given(st.lists(PART, min_size=1, max_size=4), st.data())
def test_every_part_matters_and_so_does_its_place(parts, data):
    i = data.draw(st.integers(0, len(parts) - 1))
    other = data.draw(PART.filter(lambda p: p != parts[i] and name(p) != name(parts[i])))
    changed = [*parts[:i], other, *parts[i + 1 :]]
    assert key_hash(*changed) != key_hash(*parts)
    assert key_hash(*parts, 0) != key_hash(*parts)
    swapped = parts[::-1]
    assert key_hash(*swapped) != key_hash(*parts) or swapped == parts


def name(part: int | str) -> int:
    return name_hash(part) if isinstance(part, str) else part


@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bit_of_any_part_turns_half_of_the_hash(place):
    keys = [torch.arange(2000) * 11, torch.arange(2000), torch.full((2000,), 5)]
    before = key_hash(*keys)
    for bit in range(64):
        mask = torch.tensor(-(2**63) if bit == 63 else 2**bit)
        after = key_hash(*[k ^ mask if i == place else k for i, k in enumerate(keys)])
        turned = (before ^ after).unsqueeze(1).bitwise_right_shift(torch.arange(64)) & 1
        assert abs(turned.double().mean().item() - 0.5) < 0.006  # 0.5 ± 4.3 σ over 2000 · 64 bits
        assert (turned.double().mean(0) - 0.5).abs().max() < 0.06  # each bit by itself: 5.4 σ


@pytest.mark.parametrize(
    "parts",
    [(torch.arange(10**6),), ("seed", 3, torch.arange(10**6) << 32), (torch.arange(10**6), "room", 0)],
    ids=["counter", "high bits", "first part"],
)
def test_a_million_draws_are_uniform_and_uncorrelated(parts):
    u = uniform(*parts).numpy()
    assert abs(chi_square(np.histogram(u, 1000, (0, 1))[0])) < 4
    pairs = np.histogram2d(u[:-1], u[1:], 30, ((0, 1), (0, 1)))[0]
    assert abs(chi_square(pairs)) < 4
    low = (u * 2**40 % 1 * 64).astype(int)  # the low bits, too
    assert abs(chi_square(np.bincount(low, minlength=64))) < 4
    assert len(np.unique(u)) > 10**6 - 5


@LAW
@given(st.integers(0, 200), KEYS)
def test_a_permutation_is_a_permutation_and_repeats(n, parts):
    order = permutation(n, *parts)
    assert sorted(order.tolist()) == list(range(n))
    assert torch.equal(order, permutation(n, *parts))


def test_every_permutation_of_four_comes_equally_often():
    counts: dict[tuple[int, ...], int] = {}
    for i in range(4800):
        order = tuple(permutation(4, "deal", i).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24 and abs(chi_square(np.array(list(counts.values())))) < 4


def test_the_hash_is_splitmix64():
    # The first output of the reference implementation for state 0 (Vigna, splitmix64.c); golden xor golden = 0.
    assert key_hash(0x9E3779B97F4A7C15) & (2**64 - 1) == 0xE220A8397B1DCDAF


def test_another_process_draws_the_same():
    code = (
        "import torch; from gruppo.data import *; "
        "print(key_hash('room', 7, 'ü'), uniform(1, 'x'), key_hash('a', torch.arange(3)).tolist(), "
        "permutation(5, 's').tolist())"
    )
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # hashes of Python itself are not those of here
    env = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": other}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
    here = (key_hash("room", 7, "ü"), uniform(1, "x"), key_hash("a", torch.arange(3)).tolist())
    assert said == " ".join(map(str, (*here, permutation(5, "s").tolist()))) + "\n"


def test_a_text_that_is_no_unicode_still_has_a_name():
    assert name_hash("\ud800") != name_hash("\ud801")


def test_a_million_draws_take_less_than_a_second():
    rows = torch.arange(10**6)
    times = []
    for _ in range(5):
        start = time.process_time()  # of this process alone, however busy the machine is
        uniform(1, 2, "room", rows, 3)
        times.append(time.process_time() - start)
    assert min(times) < 1
