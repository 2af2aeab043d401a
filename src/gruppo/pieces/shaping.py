"""Reward shaping."""

import numpy as np
from numpy.typing import NDArray


def overlong(length: NDArray[np.float64], budget_tokens: int, buffer_tokens: int) -> NDArray[np.float64]:
    """0 up to budget − buffer, then linear to −1 at the budget, −1 beyond (DAPO, arXiv:2503.14476, eq. 13)."""
    soft = budget_tokens - buffer_tokens
    return np.clip((soft - length) / max(buffer_tokens, 1), -1.0, 0.0)


def tool_efficiency(m: NDArray[np.float64], n: NDArray[np.float64], smooth: float) -> NDArray[np.float64]:
    """1 where m = n, less for more calls m than the least n that sufficed (OTC, arXiv:2504.14870).

    n = 0: cos(m π / (2m + smooth));   n > 0: sin(f π / 2n) with f = 2nm / (m + n), which is sin(π m / (m + n))
    """
    none = np.cos(m * np.pi / (2 * m + smooth))
    return np.where(n == 0, none, np.sin(np.pi * m / np.where(n == 0, 1.0, m + n)))
