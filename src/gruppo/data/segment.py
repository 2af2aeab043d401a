"""Segment operations: sums, means, scans and lags over any partition of rows, in linear time.

A `Key` is a partition: `index[row]` is the part of a row. The five levels of a batch are keys, too. Degenerate cases
are defined here, once: an empty part, or one smaller than `min_size`, gathers to `fill`.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from gruppo.data.levels import refuse_mask, refuse_rows, refuse_word

How = Literal["sum", "mean", "var", "std", "max", "min", "count", "any", "all", "logsumexp", "logmeanexp"]
HOWS: tuple[str, ...] = get_args(How)


@dataclass(frozen=True)
class Key:
    index: Tensor  # (rows,) int64
    size: int

    def spread(self, x: Tensor) -> Tensor:
        """The value of its part for each row. (`index_select` takes half the time of `x[index]`.)"""
        refuse_rows("x", x, "the key", self.size, "Give one value per part of the key.")
        return x.index_select(0, self.index)


def key_of(*columns: Tensor) -> Key:
    """The partition of rows by equal values in all columns. Exact: no hashing. NaN equals nothing."""
    shapes = [tuple(c.shape) for c in columns]
    if not shapes or len(shapes[0]) != 1 or len(set(shapes)) > 1:
        raise ValueError(
            f"columns of shapes {shapes} make no key: rows could not be matched. "
            "Give at least one column, each with one value per row of the same level."
        )
    index = torch.unique(columns[0], return_inverse=True)[1]
    for column in columns[1:]:
        inner = torch.unique(column, return_inverse=True)[1]
        index = torch.unique(index * (int(inner.max()) + 1 if len(inner) else 1) + inner, return_inverse=True)[1]
    return Key(index, int(index.max()) + 1 if len(index) else 0)


def _like(column: Tensor, x: Tensor) -> Tensor:
    """A column of one value per row, in a shape that broadcasts against x."""
    return column.view(-1, *(1,) * (x.dim() - 1))


def _add(x: Tensor, key: Key) -> Tensor:
    """Sums are accumulated in float64: in float32, 10^6 times 0.1 is off by 1 % and depends on the order of rows."""
    short = x.is_floating_point() and x.dtype != torch.float64 and x.device.type != "mps"
    wide = x.double() if short else x
    return wide.new_zeros((key.size, *x.shape[1:])).index_add(0, key.index, wide).to(x.dtype)


def _extreme(x: Tensor, key: Key, how: Literal["amax", "amin"]) -> Tensor:
    start = float("-inf") if how == "amax" else float("inf")
    index = _like(key.index, x).expand_as(x)
    return x.new_full((key.size, *x.shape[1:]), start).scatter_reduce(0, index, x, how)


def _refuse_rows(x: Any, key: Key, where: Any) -> None:
    rows = len(key.index)
    refuse_rows("x", x, "the key", rows, "Give one value per row that the key divides.")
    if where is not None:
        refuse_mask("where", where, "the key", rows)


def _as_float(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def one_part(rows: Tensor) -> Key:
    """All rows in one part, for statistics of the whole step."""
    return Key(torch.zeros(len(rows), dtype=torch.int64, device=rows.device), 1)


def gather(
    x: Tensor,
    key: Key,
    how: How = "sum",
    *,
    where: Tensor | None = None,
    ddof: int = 0,
    min_size: int = 1,
    fill: float = 0.0,
) -> Tensor:
    """Reduce the rows in `where` to their parts. NaN and infinities outside `where` have no effect.

    var, std: two passes around the part's minimum, so that equal values have a variance of exactly 0 and large
    offsets do not cancel; a part with at most `ddof` rows gathers to `fill`. The gradient of std at 0 is 0.
    count, any, all: `fill` is not used; without rows they are 0, False and True.
    """
    refuse_word("how", how, HOWS)
    _refuse_rows(x, key, where)
    if how == "sum" and where is None and min_size <= 1 and fill == 0.0:
        return _add(_as_float(x), key)  # no count needed
    keep = torch.ones(len(key.index), dtype=torch.bool, device=key.index.device) if where is None else where
    count = _add(keep.to(torch.int64), key)
    if how == "count":
        return count
    keep, count = _like(keep, x), _like(count, x)
    if how == "any":
        return _add((x.bool() & keep).to(torch.int64), key) > 0
    if how == "all":
        return _add((~x.bool() & keep).to(torch.int64), key) == 0
    x = _as_float(x)
    x = torch.where(keep, x, torch.zeros((), dtype=x.dtype, device=x.device))
    out = _reduce(x, key, how, keep, count, ddof)
    enough = count >= max(min_size, 1 + ddof if how in ("var", "std") else 1)
    return torch.where(enough, out, torch.full((), fill, dtype=out.dtype, device=out.device))


def _reduce(x: Tensor, key: Key, how: How, keep: Tensor, count: Tensor, ddof: int) -> Tensor:
    if how == "sum":
        return _add(x, key)
    if how == "mean":
        return _add(x, key) / count.clamp(min=1)
    if how in ("var", "std"):
        var = _variance(_centred(x, key, keep, count), key, count, ddof)
        return var if how == "var" else _root(var)
    dead = float("inf") if how == "min" else float("-inf")
    y = torch.where(keep, x, torch.full((), dead, dtype=x.dtype, device=x.device))
    if how in ("max", "min"):
        return _extreme(y, key, "amax" if how == "max" else "amin")
    top = _extreme(y.detach(), key, "amax")
    top = torch.where(torch.isfinite(top), top, torch.zeros_like(top))  # an empty part: exp(-inf) = 0 below
    total = _add(torch.where(keep, torch.exp(x - key.spread(top)), torch.zeros_like(x)), key)
    total = torch.where(count > 0, total, torch.ones_like(total))
    return total.log() + top - (count.clamp(min=1).to(x.dtype).log() if how == "logmeanexp" else 0.0)


def centre(x: Tensor, key: Key, *, where: Tensor | None = None) -> Tensor:
    """Rows minus the mean of their part; 0 outside `where`, and exactly 0 for equal rows (pitfall 16)."""
    return deviations(x, key, where=where)[0]


def deviations(x: Tensor, key: Key, *, where: Tensor | None = None, ddof: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """(rows minus the mean of their part, std of each part, number of rows of each part), computed together.

    The std of a part with at most `ddof` rows is 0.
    """
    _refuse_rows(x, key, where)
    keep = torch.ones(len(key.index), dtype=torch.bool, device=key.index.device) if where is None else where
    count = _add(keep.to(torch.int64), key)
    x = _as_float(x)
    keep, rows = _like(keep, x), _like(count, x)
    x = _centred(torch.where(keep, x, torch.zeros((), dtype=x.dtype, device=x.device)), key, keep, rows)
    return x, _root(_variance(x, key, rows, ddof)), count


def _centred(x: Tensor, key: Key, keep: Tensor, count: Tensor) -> Tensor:
    """The part's minimum is subtracted first, so that equal rows give exactly 0 and large offsets do not cancel."""
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    low = _extreme(torch.where(keep, x.detach(), torch.full_like(zero, float("inf"))), key, "amin")
    x = torch.where(keep, x - key.spread(low), zero)
    mean = _add(x, key) / count.clamp(min=1)
    return torch.where(keep, x - key.spread(mean), zero)


def _variance(centred: Tensor, key: Key, count: Tensor, ddof: int) -> Tensor:
    return _add(centred * centred, key) / (count - ddof).clamp(min=1)


def _root(var: Tensor) -> Tensor:
    """sqrt with a gradient of 0 at 0, where it would be 0 · inf = NaN."""
    flat = var == 0
    return torch.where(flat, var, torch.where(flat, torch.ones_like(var), var).sqrt())


def ranges(start: Tensor, length: Tensor) -> Tensor:
    """The concatenation of start[i] .. start[i] + length[i] - 1."""
    ends = torch.cumsum(length, 0)
    total = int(ends[-1]) if len(ends) else 0
    offset = torch.repeat_interleave(start - (ends - length), length)
    return offset + torch.arange(total, device=start.device)


def offsets(key: Key) -> tuple[Tensor, Tensor]:
    """First row and number of rows of each part; rows must be sorted by part."""
    length = torch.bincount(key.index, minlength=key.size)
    return torch.cumsum(length, 0) - length, length


SCAN_BLOCK = 65_536  # rows whose five temporaries stay in the cache


def scan(b: Tensor, c: Tensor | float, part: Tensor) -> Tensor:
    """y_t = b_t + c_t y_{t+1} inside each part, rows in time order and parts contiguous; y = b at a part's end.

    NaN and infinities stay inside their part. Computed by doubling: after k rounds a row holds the sum over 2^k steps,
    so the cost is N log2(longest part) without a loop over rows; blocks of whole parts stay in the cache. A loop over
    time steps (cost N, one small kernel per step) was slower: see benchmarks/LOG.md.
    """
    refuse_rows("b", b, "the partition", len(part), "Give one value per row.")
    if isinstance(c, Tensor) and c.dim():
        refuse_rows("c", c, "the partition", len(part), "Give one value per row, or a number.")
    b = _as_float(b)
    begin = torch.nonzero(part[1:] != part[:-1])[:, 0] + 1
    edge = torch.cat([begin.new_zeros(1), begin, begin.new_full((1,), len(b))])
    c_t = torch.as_tensor(c, dtype=b.dtype, device=b.device)
    c_t = c_t if c_t.dim() == b.dim() else _like(c_t.expand(len(b)), b)
    c_t = c_t.index_fill(0, edge[1:] - 1, 0.0) if len(b) else c_t
    cut = torch.searchsorted(edge, torch.arange(0, len(b) + 1, SCAN_BLOCK, device=b.device))
    cut = list(dict.fromkeys([*cut.tolist(), len(edge) - 1]))  # the first part of each block, and the end
    longest = [int(edge[i : j + 1].diff().max()) for i, j in pairwise(cut)]
    rows = pairwise(edge[cut].tolist())
    return torch.cat([_scan_block(b[i:j], c_t[i:j], part[i:j], n) for (i, j), n in zip(rows, longest, strict=True)])


def _scan_block(b: Tensor, c: Tensor, part: Tensor, longest: int) -> Tensor:
    if not (b.requires_grad or c.requires_grad):
        y = _doubled(b, c, longest)
        # A coefficient of 0 separates parts, but 0 · NaN is NaN: only then is the slower guard needed.
        if bool(torch.isfinite(y).all()):
            return y
    return _guarded(b, c, longest, part)


def _doubled(b: Tensor, c: Tensor, longest: int) -> Tensor:
    """After the round of `step`, y_t is the sum over the next 2 · step rows."""
    y, step = b.clone(), 1
    y_next, c_next = torch.empty_like(y), torch.empty_like(c)  # double buffering
    while step < longest:
        torch.addcmul(y[:-step], c[:-step], y[step:], out=y_next[:-step])
        torch.mul(c[:-step], c[step:], out=c_next[:-step])
        y_next[-step:], c_next[-step:] = y[-step:], 0.0
        y, y_next = y_next, y
        c, c_next = c_next, (torch.empty_like(c) if step == 1 else c)  # the first c is the caller's
        step *= 2
    return y


def _guarded(b: Tensor, c: Tensor, longest: int, part: Tensor) -> Tensor:
    """The same with gradients and for values that are not finite: no part reads another."""
    y, zero, step = b, torch.zeros((), dtype=b.dtype, device=b.device), 1
    while step < longest:
        inside = _like(part[step:] == part[:-step], b)
        y_later, c_later = torch.where(inside, y[step:], zero), torch.where(inside, c[step:], zero)
        y = torch.cat([torch.addcmul(y[:-step], c[:-step], y_later), y[-step:]])
        c = torch.cat([c[:-step] * c_later, torch.zeros_like(c[-step:])])
        step *= 2
    return y


def lag(x: Tensor, k: int, part: Tensor, fill: int | float = 0) -> Tensor:
    """The value k rows earlier in the same part (k < 0: later); `fill` where there is none."""
    refuse_rows("x", x, "the partition", len(part), "Give one value per row.")
    out = torch.full_like(x, fill)
    if k == 0:
        return x.clone()
    if abs(k) >= len(x):
        return out
    if k > 0:
        same = _like(part[k:] == part[:-k], x)
        out[k:] = torch.where(same, x[:-k], out[k:])
    else:
        same = _like(part[:k] == part[-k:], x)
        out[:k] = torch.where(same, x[-k:], out[:k])
    return out
