"""Correct against wrong answers of a group, and the hinge that bounds the step's KL (DisCO, arXiv:2505.12366)."""

from typing import NamedTuple

import torch
from torch import Tensor

from gruppo.data import Key, gather
from gruppo.pieces.stop import stop


class Sides(NamedTuple):
    """The correct and the wrong answers among those compared; `both_G`: groups that have both."""

    right_E: Tensor
    wrong_E: Tensor
    both_G: Tensor


def sides(right_E: Tensor, live_E: Tensor, groups: Key) -> Sides:
    """The answers in `live_E`, split into correct and wrong."""
    right_E, wrong_E = right_E & live_E, ~right_E & live_E
    return Sides(right_E, wrong_E, gather(right_E, groups, "any") & gather(wrong_E, groups, "any"))


def soft_most(x_E: Tensor, wrong_E: Tensor, groups: Key, tau: float) -> Tensor:
    """τ log mean exp(x_j / τ) over the wrong answers of each group: near their maximum for a small τ, near their mean
    for a large one."""
    return tau * gather(x_E / tau, groups, "logmeanexp", where=wrong_E)


def hinge(drift_N: Tensor, learn_N: Tensor, coef: float, limit: float) -> Tensor:
    """sg(coef [mean drift − limit]_+): the penalty weight for drift from the old policy; 0 within the limit."""
    return stop(coef * torch.relu(drift_N.sum() / learn_N.sum().clamp(min=1) - limit))
