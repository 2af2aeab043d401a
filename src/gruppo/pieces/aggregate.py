"""Aggregation as weights: an objective is Σ_x weight_x value_x, with weights counted over the whole optimiser step."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import Batch, Key, Level
from gruppo.data.levels import refuse_rows

UNITS: dict[str, Level] = {"turn": "K", "sequence": "S", "episode": "E", "group": "G", "drawn_group": "G"}
MEANS = ("token", *UNITS, *(f"{u}_sum" for u in UNITS))


@dataclass(frozen=True)
class Count:
    """The denominators of a mean: rows, units with rows, groups drawn. Counts of disjoint parts add up."""

    rows: float = 0.0
    units: float = 0.0
    drawn: float = 0.0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.rows + other.rows, self.units + other.units, self.drawn + other.drawn)


def count(batch: Batch, at: Level, over: Tensor, mean: str | float) -> Count:
    """The denominators of `mean` over the rows of level `at` in `over`. They add up over parts of whole units."""
    rows = float(over.sum())
    if isinstance(mean, float | int) or mean == "token":
        return Count(rows)
    key = batch.level(at, _unit(mean))
    return Count(rows, float((_rows_by(key, over.to(torch.int64)) > 0).sum()), float(batch.drawn))


def weights(batch: Batch, at: Level, over: Tensor, mean: str | float, of: Count | None = None) -> Tensor:
    """The weight of each row of level `at`; 0 outside `over`, and all 0 when `over` is empty.

    token                    1 / rows
    turn, sequence, episode, group    mean inside each unit, then over the units with rows
    drawn_group              the same, divided by all groups drawn, including those that selection removed
    <unit>_sum               sum inside each unit, then mean over the units with rows
    <unit>_sum/64            the same, divided by a constant, usually the maximum length
    a number c               1 / c

    Known elsewhere as token-mean; seq-mean-token-mean (sequence); seq-mean-token-sum (sequence_sum);
    seq-mean-token-sum-norm (sequence_sum/64, or the number 64 where the caller divides by the number of answers).
    `of` is the count of the whole optimiser step if this batch is a part of it.
    """
    refuse_rows("over", over, f"level {at}", batch.size(at), f"Give a mask of {at}, or name its level: at=….")
    mask = over.to(batch.columns["weight_N"].dtype)
    if isinstance(mean, float | int):
        if not mean > 0:
            raise ValueError(f"mean={mean}: an objective cannot be divided by it. Give a number above 0.")
        return mask / mean
    of = count(batch, at, over, mean) if of is None else of
    if mean == "token":
        return mask / max(of.rows, 1.0)
    key = batch.level(at, _unit(mean))
    name, constant = _constant(mean)
    units = max(of.drawn if name.startswith("drawn_group") else of.units, 1.0)
    inside = 1.0 if name.endswith("_sum") else _rows_by(key, mask).clamp(min=1)[key.index]
    return mask / inside / units / constant


def _rows_by(key: Key, mask: Tensor) -> Tensor:
    return torch.zeros(key.size, dtype=mask.dtype, device=mask.device).index_add(0, key.index, mask)


def _unit(mean: str) -> Level:
    name, _ = _constant(mean)
    if name not in MEANS:
        raise ValueError(
            f"mean={mean!r} is no way to average. Use one of {', '.join(MEANS)}, a sum over a constant such as "
            "sequence_sum/64, or a number."
        )
    return UNITS[name.removesuffix("_sum")]


def _constant(mean: str) -> tuple[str, float]:
    """("sequence_sum", 64.0) of "sequence_sum/64"; the constant is 1 by default."""
    name, slash, text = mean.partition("/")
    if not slash:
        return mean, 1.0
    number = float(text) if text.replace(".", "", 1).isdecimal() else 0.0
    if not (name.endswith("_sum") and number > 0):
        raise ValueError(
            f"mean={mean!r} divides by no constant. Write a sum, a slash and a number above 0: sequence_sum/64."
        )
    return name, number


def weighted_sum(value: Tensor, weight: Tensor) -> Tensor:
    """Σ weight · value; rows of weight 0 are skipped, whatever their value (0 · NaN is NaN)."""
    return torch.where(weight != 0, weight * value, torch.zeros_like(value)).sum()
