"""Reward shaping."""

import numpy as np
from numpy.typing import NDArray


def overlong(length: NDArray[np.float64], budget_tokens: int, buffer_tokens: int) -> NDArray[np.float64]:
    """0 up to budget − buffer, then linear to −1 at the budget, −1 beyond (DAPO, arXiv:2503.14476, eq. 13)."""
    soft = budget_tokens - buffer_tokens
    return np.clip((soft - length) / max(buffer_tokens, 1), -1.0, 0.0)
