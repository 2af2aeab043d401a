"""Keyed random numbers: every draw is a pure function of its key.

A key is any mix of integers, strings and int64 tensors. There is no generator object, so rows can finish, fork, be
reordered, redrawn or resumed without changing the random numbers of another row.

    h_0 = golden,   h_{k+1} = splitmix64(h_k xor part_k),   u = top 53 bits of h / 2^53

SplitMix64: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators".
"""

from functools import lru_cache
from hashlib import blake2b
from operator import index

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Part = int | str | Tensor
Words = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = {n: np.uint64(n) for n in (_GOLDEN, _M1, _M2, 11, 27, 30, 31)}


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


@np.errstate(over="ignore")  # of which numpy warns where there is one number only
def _finish_words(z: Words) -> Words:
    """Sums and products of arrays wrap around at 64 bits."""
    z = z + _WORD[_GOLDEN]
    z = (z ^ (z >> _WORD[30])) * _WORD[_M1]
    z = (z ^ (z >> _WORD[27])) * _WORD[_M2]
    return z ^ (z >> _WORD[31])


def _finish_tensor(z: Tensor) -> Tensor:
    z = z + _signed(_GOLDEN)
    z = (z ^ _shift(z, 30)) * _signed(_M1)
    z = (z ^ _shift(z, 27)) * _signed(_M2)
    return z ^ _shift(z, 31)


def _number(part: Part) -> int | Words | Tensor:
    if isinstance(part, str):
        return name_hash(part)
    if not isinstance(part, Tensor):
        return index(part)
    if part.is_floating_point():
        raise ValueError(
            f"a part of the key is a {part.dtype} tensor: rounding could make different keys equal, or equal keys "
            "different. Use whole numbers: a uid, a step, a position."
        )
    part = part.to(torch.int64)
    # numpy takes a third of the time that torch takes for the few rows of a decoding step, and for many as well.
    return np.asarray(part.numpy()).view(np.uint64) if part.device.type == "cpu" else part


def _hash(parts: tuple[Part, ...]) -> int | Words | Tensor:
    """The hash of a key, without a sign where it is not a tensor of another device."""
    h: int | Words | Tensor = _GOLDEN
    for part in parts:
        p = _number(part)
        if isinstance(h, int) and isinstance(p, int):
            h = _finish_int(h ^ (p & _MASK))
        elif isinstance(h, Tensor) or isinstance(p, Tensor):
            h = _finish_tensor(torch.bitwise_xor(*(_tensor(x) for x in (h, p))))
        else:
            left, right = (np.uint64(x & _MASK) if isinstance(x, int) else x for x in (h, p))
            h = _finish_words(np.bitwise_xor(left, right))
    return h


def _tensor(x: int | Words | Tensor) -> Tensor:
    if isinstance(x, int):
        return torch.as_tensor(_signed(x & _MASK))
    return x if isinstance(x, Tensor) else torch.from_numpy(np.asarray(x).view(np.int64))


def key_hash(*parts: Part) -> int | Tensor:
    """The signed 64-bit hash of a key; a tensor if any part is a tensor (parts broadcast)."""
    h = _hash(parts)
    return _signed(h) if isinstance(h, int) else _tensor(h)


def uniform(*parts: Part) -> float | Tensor:
    """A uniform number in [0, 1) for the key: a float, or a float64 tensor of the shape of the tensor parts."""
    h = _hash(parts)
    if isinstance(h, int):
        return (h >> 11) * 2.0**-53
    if isinstance(h, Tensor):
        return _shift(h, 11).to(torch.float64) * 2.0**-53
    return torch.from_numpy(np.asarray((h >> _WORD[11]) * 2.0**-53))


def permutation(n: int, *parts: Part) -> Tensor:
    """A keyed permutation of 0..n-1: n keyed numbers, sorted."""
    u_n = uniform(*parts, torch.arange(n))
    assert isinstance(u_n, Tensor)
    return torch.argsort(u_n, stable=True)
