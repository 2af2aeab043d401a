"""Aggregation as weights: an objective is Σ_x weight_x value_x, with weights counted over the whole optimiser step."""

import torch
from torch import Tensor

from gruppo.data import Batch, Level

UNITS: dict[str, Level] = {"sequence": "S", "episode": "E", "group": "G", "drawn_group": "G"}
MEANS = ("token", *UNITS, *(f"{u}_sum" for u in UNITS))


def weights(batch: Batch, at: Level, over: Tensor, mean: str | float) -> Tensor:
    """The weight of each row of level `at`; 0 outside `over`, and all 0 when `over` is empty.

    token                    1 / rows
    sequence, episode, group mean inside each unit, then over the units that have rows
    drawn_group              the same, divided by all groups drawn, also those that selection removed
    <unit>_sum               sum inside each unit, then mean over the units that have rows
    <unit>_sum/64            the same, divided by a constant: the longest answer there can be, whatever its length
    a number c               1 / c

    Elsewhere called: token-mean; seq-mean-token-mean (sequence); seq-mean-token-sum (sequence_sum);
    seq-mean-token-sum-norm (sequence_sum/64, or the number 64 where the caller divides by the answers).
    """
    dtype = batch.columns["weight_N"].dtype
    mask = over.to(dtype)
    if isinstance(mean, float | int):
        if not mean > 0:
            raise ValueError(f"mean={mean}: an objective cannot be divided by it. Give a number above 0.")
        return mask / mean
    if mean == "token":
        return mask / mask.sum().clamp(min=1)
    mean, constant = _constant(mean)
    if mean not in MEANS:
        raise ValueError(
            f"mean={mean!r} is no way to average. Use one of {', '.join(MEANS)}, a sum over a constant such as "
            "sequence_sum/64, or a number."
        )
    unit = UNITS[mean.removesuffix("_sum")]
    key = batch.level(at, unit)
    rows = torch.zeros(key.size, dtype=dtype, device=mask.device).index_add(0, key.index, mask)
    units = float(batch.drawn) if mean.startswith("drawn_group") else (rows > 0).sum().clamp(min=1)
    inside = 1.0 if mean.endswith("_sum") else rows.clamp(min=1)[key.index]
    return mask / inside / units / constant


def _constant(mean: str) -> tuple[str, float]:
    """("sequence_sum", 64.0) of "sequence_sum/64"; 1 where nothing is said."""
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
    """Σ weight · value; rows of weight 0 do not enter, whatever their value (0 · NaN is NaN)."""
    return torch.where(weight != 0, weight * value, torch.zeros_like(value)).sum()
