"""A critic: a trunk of its own and one value, or several, for each position."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from gruppo.data import Inputs
from gruppo.policies.base import clone

SMALL = 0.1  # about the size of the first values of a head with several outputs


class ValueHead(nn.Linear):
    """Values (X, outputs) in at least float32."""

    def forward(self, input: Tensor) -> Tensor:
        dtype = torch.promote_types(input.dtype, torch.float32)
        return nn.functional.linear(input.to(dtype), self.weight.to(dtype), self.bias.to(dtype))


class Critic(nn.Module):
    """value = w · hidden + b, with w = b = 0 at the start, so that the first advantages are the returns.

    With several outputs w is random and small, by `seed`: outputs that begin as equals and have equal targets, such as
    those of a double critic, would stay equal. The trunk is a copy of the policy's, so training the critic never moves
    the policy.
    """

    def __init__(self, policy: nn.Module, outputs: int = 1, seed: int = 0) -> None:
        super().__init__()
        trunk: Any = clone(policy, train=True)
        self.trunk: nn.Module = trunk
        self.dim, self.layers, self.context, self.vocab = trunk.dim, trunk.layers, trunk.context, outputs
        first = next(trunk.parameters())
        self.value = cast(ValueHead, skip_init(ValueHead, self.dim, outputs, device=first.device, dtype=first.dtype))
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)
        if outputs > 1:
            drawn = torch.randn(self.value.weight.shape, generator=torch.Generator().manual_seed(seed))
            with torch.no_grad():
                self.value.weight.copy_(drawn * SMALL / self.dim**0.5)

    @property
    def device(self) -> torch.device:
        return self.value.weight.device

    @property
    def head(self) -> ValueHead:
        return self.value

    def forward(self, inputs: Inputs, collect: tuple[int, ...] = ()) -> tuple[Tensor, dict[int, Tensor]]:
        return self.trunk(inputs, collect)
