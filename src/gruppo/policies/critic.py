"""A critic: a trunk of its own and one value for each position."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from gruppo.data import Inputs
from gruppo.policies.base import clone


class ValueHead(nn.Linear):
    """Values (X, 1) in at least float32."""

    def forward(self, input: Tensor) -> Tensor:
        dtype = torch.promote_types(input.dtype, torch.float32)
        return nn.functional.linear(input.to(dtype), self.weight.to(dtype), self.bias.to(dtype))


class Critic(nn.Module):
    """value = w · hidden + b, with w = b = 0 at the start, so that the first advantages are the returns.

    The trunk is a copy of the policy's, so training the critic never moves the policy.
    """

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        trunk: Any = clone(policy, train=True)
        self.trunk: nn.Module = trunk
        self.dim, self.layers, self.context, self.vocab = trunk.dim, trunk.layers, trunk.context, 1
        first = next(trunk.parameters())
        self.value = cast(ValueHead, skip_init(ValueHead, self.dim, 1, device=first.device, dtype=first.dtype))
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    @property
    def device(self) -> torch.device:
        return self.value.weight.device

    @property
    def head(self) -> ValueHead:
        return self.value

    def forward(self, inputs: Inputs, collect: tuple[int, ...] = ()) -> tuple[Tensor, dict[int, Tensor]]:
        return self.trunk(inputs, collect)
