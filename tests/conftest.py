from collections.abc import Callable

import pytest
import torch

from gruppo.policies import TinyConfig, TinyTransformer


@pytest.fixture
def make() -> Callable[..., TinyTransformer]:
    """A small policy whose distributions are far from uniform."""

    def build(dtype: torch.dtype = torch.float64, seed: int = 0, **config: int) -> TinyTransformer:
        shape = {
            "vocab": 23,
            "dim": 32,
            "layers": 2,
            "heads": 4,
            "kv_heads": 2,
            "ffn": 48,
            "context": 64,
        } | config
        policy = TinyTransformer(TinyConfig(**shape), seed)
        with torch.no_grad():
            for w in policy.parameters():
                if w.dim() > 1:
                    w.mul_(10)
        return policy.to(dtype)

    return build
