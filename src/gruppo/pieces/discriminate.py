"""Right answers of a group against wrong ones, and the hinge that keeps such a step near the old policy (DisCO,
arXiv:2505.12366)."""

from typing import NamedTuple

import torch
from torch import Tensor

from gruppo.data import Key, gather
from gruppo.pieces.stop import stop


class Sides(NamedTuple):
    """Which answers are right, and which wrong, of those that are compared; `both_G`: groups that have both."""

    right_E: Tensor
    wrong_E: Tensor
    both_G: Tensor


def sides(right_E: Tensor, live_E: Tensor, groups: Key) -> Sides:
    """The answers in `live_E`, by side."""
    right_E, wrong_E = right_E & live_E, ~right_E & live_E
    return Sides(right_E, wrong_E, gather(right_E, groups, "any") & gather(wrong_E, groups, "any"))


def soft_most(score_E: Tensor, wrong_E: Tensor, groups: Key, tau: float) -> Tensor:
    """τ log mean exp(s_j / τ) over the wrong answers of each group: nearly their largest score for a small τ, their
    mean for a large one."""
    return tau * gather(score_E / tau, groups, "logmeanexp", where=wrong_E)


def hinge(drift_N: Tensor, learn_N: Tensor, coef: float, limit: float) -> Tensor:
    """sg(coef [mean drift − limit]_+): the price of drifting from the old policy, 0 inside the limit."""
    return stop(coef * torch.relu(drift_N.sum() / learn_N.sum().clamp(min=1) - limit))
