"""Rotary embeddings (Su et al. 2021): frequencies, their scaling for longer contexts, and tables of cos and sin."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

KINDS = ("default", "linear", "llama3")
BASE = 10000.0
PIECE = 8192  # positions whose angles are computed at once, in float64


@dataclass(frozen=True)
class Scaling:
    """What is done to the frequencies for a context longer than the one of pretraining.

    linear divides all of them by `factor`. llama3 leaves those alone that turn more than `high` times within the
    `original` positions, divides those by `factor` that turn less than `low` times, and interpolates in between.
    """

    kind: str = "default"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            from gruppo.stages.names import nearest  # not above: the stages import the policies

            raise ValueError(
                f"rope_type={self.kind!r} is not known{nearest(str(self.kind), KINDS)}. Use one of {', '.join(KINDS)}."
            )
        if not self.factor > 0:
            raise ValueError(
                f"rope factor={self.factor}: frequencies are divided by it. Use a factor above 0, usually above 1."
            )
        if self.kind == "llama3" and not 0 < self.low < self.high:
            raise ValueError(
                f"rope_type='llama3' with low={self.low} and high={self.high}: frequencies between the two are "
                "interpolated. Use 0 < low < high, such as 1 and 4."
            )

    def of(self, turn_R: Tensor) -> Tensor:
        """The scaled frequencies, in radians per position."""
        if self.kind == "linear":
            return turn_R / self.factor
        if self.kind == "llama3":
            turns_R = self.original * turn_R / (2 * math.pi)
            kept_R = ((turns_R - self.low) / (self.high - self.low)).clamp(0, 1)
            return turn_R * (kept_R + (1 - kept_R) / self.factor)
        return turn_R


def tables(context: int, size: int, base: float, scaling: Scaling) -> tuple[Tensor, Tensor]:
    """cos and sin (context, size) in float32, for heads of `size`; sin has the sign of the half that it multiplies.

    The angles are float64: at position 100,000 those of float32 are wrong by up to 0.007. They are computed in pieces:
    tables of 128 MiB (131,072 positions, heads of 128) then need 161 MiB while they are made, and 449 all at once.
    """
    half = size // 2
    turn_R = scaling.of(base ** (-torch.arange(half, dtype=torch.float64) / half))
    cos_PD, sin_PD = torch.empty(context, size), torch.empty(context, size)
    for first in range(0, context, PIECE):
        piece = slice(first, min(first + PIECE, context))
        angle_PR = torch.arange(piece.start, piece.stop, dtype=torch.float64)[:, None] * turn_R
        cos, sin = angle_PR.cos(), angle_PR.sin()
        cos_PD[piece], sin_PD[piece] = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
    return cos_PD, sin_PD


def read_rope(given: Mapping[str, Any]) -> tuple[float, Scaling]:
    """The base and the scaling in a config.json, in both of its spellings: rope_scaling, or rope_parameters.

    A ValueError says what is not known. Where both are there transformers uses the first.
    """
    rope = given.get("rope_scaling") or given.get("rope_parameters") or {}
    if any(isinstance(value, dict) for value in rope.values()):
        raise ValueError("rope_parameters differ from layer to layer")
    part = rope.get("partial_rotary_factor", given.get("partial_rotary_factor"))
    if part not in (None, 1):
        raise ValueError(f"partial_rotary_factor={part!r}, and only whole heads are turned here")
    kind = rope.get("rope_type", rope.get("type"))
    if kind is None and "factor" in rope:
        raise ValueError(f"rope_scaling={rope!r} names no rope_type")
    base = float(rope.get("rope_theta") or given.get("rope_theta") or BASE)
    if kind in (None, "default"):
        return base, Scaling()
    if kind == "linear":
        return base, Scaling(kind, _number(rope, "factor"))
    if kind == "llama3":
        before = given.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
        original = before or given["max_position_embeddings"]
        numbers = [_number(rope, key) for key in ("factor", "low_freq_factor", "high_freq_factor")]
        return base, Scaling(kind, *numbers, original=int(original))
    return base, Scaling(str(kind))  # which says that it is not known


def _number(rope: Mapping[str, Any], key: str) -> float:
    value = rope.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{key}={value!r} in its rope_scaling is no number")
    return float(value)


def write_rope(base: float, scaling: Scaling) -> dict[str, Any]:
    """Fields of a config.json that old and new versions of transformers read."""
    told: dict[str, Any] = {"rope_theta": base}
    if scaling.kind != "default":
        told["rope_scaling"] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        told["rope_scaling"] |= {"low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
        told["rope_scaling"] |= {"original_max_position_embeddings": scaling.original}
    return told
