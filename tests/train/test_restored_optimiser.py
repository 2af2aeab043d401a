"""An optimiser as a checkpoint brings it back."""

import torch

from gruppo.train.checkpoint import optimiser_tensors, restore_optimiser
from gruppo.train.optim import MasterAdamW


def stepped() -> tuple[torch.nn.Parameter, MasterAdamW]:
    p = torch.nn.Parameter(torch.linspace(-1, 1, 8, dtype=torch.bfloat16))
    optimiser = MasterAdamW([p], lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=False)
    _step(p, optimiser)
    return p, optimiser


def _step(p: torch.nn.Parameter, optimiser: MasterAdamW) -> None:
    p.grad = torch.full_like(p, 0.3)
    optimiser.step()


def test_float32_copies_of_bfloat16_weights_are_not_rounded() -> None:
    p, optimiser = stepped()
    q, other = stepped()
    restore_optimiser(other, optimiser_tensors(optimiser))
    assert {x.dtype for x in other.state[q].values()} == {torch.float32}
    for _ in range(3):
        _step(p, optimiser)
        _step(q, other)
    assert torch.equal(optimiser.state[p]["master"], other.state[q]["master"]) and torch.equal(p, q)
