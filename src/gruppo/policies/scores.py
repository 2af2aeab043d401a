"""The head of a policy: logits in at least float32."""

from typing import Any

from torch import Tensor, nn

from gruppo.kernels.scores import scores


class Head(nn.Module):
    """Logits in at least float32. The weights belong to another module, which the trunk may use as its embedding."""

    owner: tuple[Any, ...] = ()  # (that module,): in a tuple, so that its weights are not registered here again

    def forward(self, hidden_XD: Tensor) -> Tensor:
        (linear,) = self.owner
        return scores(hidden_XD, linear.weight, getattr(linear, "bias", None))
