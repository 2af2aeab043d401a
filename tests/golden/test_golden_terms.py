"""What each method hands to the learner: which terms, of which level, over which mean, how much, and cut how."""

import pytest
import torch

from gruppo.data import Key
from gruppo.pieces.advantage import weighted_centre

# shares that are told


@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7, 1 / 3, 1.1])
def test_equal_rewards_have_a_weighted_baseline_of_exactly_themselves(reward: float) -> None:
    """Rounding would leave 1e-17, and a method that divides by a deviation makes an advantage of it (pitfall 16)."""
    key, weight = Key(torch.zeros(5, dtype=torch.int64), 1), torch.tensor([3.0, 7.0, 11.0, 2.0, 5.0])
    for dtype in (torch.float32, torch.float64):
        x = torch.full((5,), reward, dtype=dtype)
        assert weighted_centre(x, weight.to(dtype), key).tolist() == [0.0] * 5
