"""A critic: a trunk of its own and one number for each position."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from gruppo.data import Inputs
from gruppo.policies.base import clone


class Critic(nn.Module):
    """value = w · hidden + b, with w = b = 0 at the start, so that the first advantages are the returns.

    The trunk is a copy of the policy's: its steps never move the policy.
    """

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.trunk = clone(policy, train=True)
        self.dim: int = self.trunk.dim  # type: ignore[assignment]
        self.layers: int = self.trunk.layers  # type: ignore[assignment]
        self.context: int = self.trunk.context  # type: ignore[assignment]
        self.vocab = 1
        first = next(self.trunk.parameters())
        value = skip_init(nn.Linear, self.dim, 1, device=first.device, dtype=first.dtype)
        self.value = cast(nn.Linear, value)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    @property
    def device(self) -> torch.device:
        return self.value.weight.device

    def hidden(self, inputs: Inputs, collect: tuple[int, ...] = ()) -> tuple[Tensor, dict[int, Tensor]]:
        return self.trunk.hidden(inputs, collect)  # type: ignore[operator]

    def head(self, hidden_XD: Tensor) -> Tensor:
        """Values (X, 1) in at least float32."""
        dtype = torch.promote_types(hidden_XD.dtype, torch.float32)
        return nn.functional.linear(hidden_XD.to(dtype), self.value.weight.to(dtype), self.value.bias.to(dtype))
