"""Keyed random numbers: every draw is a pure function of its key.

A key is any mix of integers, strings and int64 tensors. There is no generator object, so rows can finish, fork, be
reordered, redrawn or resumed without changing the random numbers of another row.

    h_0 = golden,   h_{k+1} = splitmix64(h_k xor part_k),   u = top 53 bits of h / 2^53

SplitMix64: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
"""

from functools import lru_cache
from hashlib import blake2b
from operator import index

import torch
from torch import Tensor

Part = int | str | Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(x: int) -> int:
    return x - (1 << 64) if x >= 1 << 63 else x


@lru_cache(maxsize=65536)
def name_hash(text: str) -> int:
    """A signed 64-bit hash of a string, the same in every process (unlike Python's own hash)."""
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little", signed=True)


def _finish_int(z: int) -> int:
    z = (z + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _M1) & _MASK
    z = ((z ^ (z >> 27)) * _M2) & _MASK
    return z ^ (z >> 31)


def _shift(z: Tensor, n: int) -> Tensor:
    # torch shifts int64 arithmetically; the mask makes it a logical shift.
    return (z >> n) & ((1 << (64 - n)) - 1)


def _finish_tensor(z: Tensor) -> Tensor:
    z = z + _signed(_GOLDEN)
    z = (z ^ _shift(z, 30)) * _signed(_M1)
    z = (z ^ _shift(z, 27)) * _signed(_M2)
    return z ^ _shift(z, 31)


def _number(part: Part) -> int | Tensor:
    if isinstance(part, str):
        return name_hash(part)
    if not isinstance(part, Tensor):
        return index(part)
    if part.is_floating_point():
        raise ValueError(
            f"a part of the key is a {part.dtype} tensor: rounding could make different keys equal, or equal keys "
            "different. Use whole numbers: a uid, a step, a position."
        )
    return part.to(torch.int64)


def key_hash(*parts: Part) -> int | Tensor:
    """The signed 64-bit hash of a key; a tensor if any part is a tensor (parts broadcast)."""
    h: int | Tensor = _GOLDEN
    for part in parts:
        p = _number(part)
        if isinstance(h, Tensor) or isinstance(p, Tensor):
            left = h if isinstance(h, Tensor) else _signed(h)
            right = p if isinstance(p, Tensor) else _signed(p & _MASK)
            h = _finish_tensor(torch.bitwise_xor(torch.as_tensor(left), right))
        else:
            h = _finish_int(h ^ (p & _MASK))
    return h if isinstance(h, Tensor) else _signed(h)


def uniform(*parts: Part) -> float | Tensor:
    """A uniform number in [0, 1) for the key: a float, or a float64 tensor of the shape of the tensor parts."""
    h = key_hash(*parts)
    if isinstance(h, Tensor):
        return _shift(h, 11).to(torch.float64) * 2.0**-53
    return ((h & _MASK) >> 11) * 2.0**-53


def permutation(n: int, *parts: Part) -> Tensor:
    """A keyed permutation of 0..n-1: n keyed numbers, sorted."""
    u_n = uniform(*parts, torch.arange(n))
    assert isinstance(u_n, Tensor)
    return torch.argsort(u_n, stable=True)
