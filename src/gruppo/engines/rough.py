"""Weights of the sampler that are not quite those of the trainer: rounded, or with noise.

Then log π_gen differs from log π_old, as where one engine samples in bfloat16 or fp8 and another one trains. Both are
functions of the weights, their version and the seed, so a resumed run samples from the same ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import key_hash
from gruppo.policies import clone, learned_state, load_learned


def rounded(weight: Tensor, bits: int) -> Tensor:
    """The nearest numbers of so many significant bits, ties to even. The exponent is not limited."""
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    mantissa, exponent = torch.frexp(wide)  # wide = mantissa · 2^exponent, 0.5 <= |mantissa| < 1
    return torch.ldexp(torch.round(mantissa * 2.0**bits) / 2.0**bits, exponent).to(weight.dtype)


def noisy(weight: Tensor, size: float, *key: int | str) -> Tensor:
    """weight · (1 + size · ε) with ε ~ N(0, 1), the same for the same key on every device."""
    keyed = torch.Generator().manual_seed(int(key_hash(*key)))
    noise = torch.randn(weight.shape, generator=keyed, dtype=torch.float32)
    return weight * (1 + size * noise.to(weight))


@dataclass(frozen=True)
class Roughness:
    """How the weights of a sampler differ from those of the trainer: noise, then rounding. False: they do not."""

    bits: int = 0  # 0: all of them
    noise: float = 0.0
    seed: int = 0

    def __bool__(self) -> bool:
        return self.bits > 0 or self.noise > 0

    def __call__(self, weight: Tensor, *key: int | str) -> Tensor:
        made = noisy(weight, self.noise, self.seed, "sampler", *key) if self.noise else weight
        return rounded(made, self.bits) if self.bits else made


class Copies:
    """Rough copies of models, to sample from. The frozen weights under an adapter are shared, and stay as they are."""

    def __init__(self, models: Mapping[str, Any], roles: Sequence[str], rough: Roughness) -> None:
        self.rough = rough
        self.models: dict[str, Any] = {role: clone(models[role]) for role in roles}
        self.follow(0, models)

    def follow(self, version: int, models: Mapping[str, Any]) -> None:
        """Take the weights of this version."""
        for role, mine in self.models.items():
            state = learned_state(models[role])
            load_learned(mine, {name: self.rough(w.detach(), version, role, name) for name, w in state.items()})
