"""Numbers for problems: a keyed hash, a keyed permutation of 0..n-1 without memory, and unranking.

Plain Python without torch and numpy, because every worker of a scorer imports it. The hash is the one of
`gruppo.data.keyed` (SplitMix64 over the parts of a key), for Python integers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from math import comb
from typing import TypeVar

T = TypeVar("T")

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = 4


@lru_cache(maxsize=4096)
def _name(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def _mix(z: int) -> int:
    z = (z + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def hash64(*parts: int | str) -> int:
    """An unsigned 64-bit hash of a key, the same in every process and Python version."""
    h = _GOLDEN
    for part in parts:
        h = _mix(h ^ ((_name(part) if isinstance(part, str) else part) & _MASK))
    return h


@dataclass(frozen=True)
class Shuffle:
    """A keyed permutation of 0..size-1 that is computed, not stored: `shuffle(i)`, and `back` undoes it.

    A Feistel network on the next even number of bits, applied again while the result is outside the range (cycle
    walking: Black and Rogaway 2002, "Ciphers with arbitrary finite domains"), at most four times on average.
    """

    size: int
    key: int

    @property
    def _half(self) -> int:
        return max(1, ((self.size - 1).bit_length() + 1) // 2)

    def __call__(self, i: int) -> int:
        half = self._half
        mask = (1 << half) - 1
        while True:
            left, right = i >> half, i & mask
            for r in range(_ROUNDS):
                left, right = right, left ^ (_mix(self.key ^ (right * _ROUNDS + r)) & mask)
            i = left << half | right
            if i < self.size:
                return i

    def back(self, j: int) -> int:
        """The i with `shuffle(i) == j`."""
        half = self._half
        mask = (1 << half) - 1
        while True:
            left, right = j >> half, j & mask
            for r in reversed(range(_ROUNDS)):
                left, right = right ^ (_mix(self.key ^ (left * _ROUNDS + r)) & mask), left
            j = left << half | right
            if j < self.size:
                return j


def arrange(items: Sequence[T], number: int) -> list[T]:
    """The permutation of the items with this number (factorial base; larger numbers wrap around)."""
    rest, out = list(items), []
    while rest:
        number, at = divmod(number, len(rest))
        out.append(rest.pop(at))
    return out


def multisets(values: int, size: int) -> int:
    """The number of multisets of `size` elements from `values` different ones."""
    return comb(values + size - 1, size)


def multiset(rank: int, size: int) -> list[int]:
    """The multiset number `rank`, as ascending integers from 0 (combinatorial number system).

    Multisets of 0..v-1 have the ranks below `multisets(v, size)`, so v is not a parameter.
    """
    out: list[int] = []
    for k in range(size, 0, -1):
        low, high = k - 1, k
        while comb(high, k) <= rank:
            low, high = high, high * 2
        while high - low > 1:  # the largest c with comb(c, k) <= rank lies in [low, high)
            middle = (low + high) // 2
            low, high = (middle, high) if comb(middle, k) <= rank else (low, middle)
        rank -= comb(low, k)
        out.append(low - (k - 1))
    return out[::-1]
