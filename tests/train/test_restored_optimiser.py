"""Our AdamW is torch's, without its compiler; and as a checkpoint brings it back."""

import subprocess
import sys

import pytest
import torch

from gruppo.train.checkpoint import optimiser_tensors, restore_optimiser
from gruppo.train.optim import AdamW


def stepped() -> tuple[torch.nn.Parameter, AdamW]:
    p = torch.nn.Parameter(torch.linspace(-1, 1, 8, dtype=torch.bfloat16))
    optimiser = AdamW([p], lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=False)
    _step(p, optimiser)
    return p, optimiser


def _step(p: torch.nn.Parameter, optimiser: AdamW) -> None:
    p.grad = torch.full_like(p, 0.3)
    optimiser.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fused", [True, False])
def test_it_is_torchs_bit_for_bit(dtype: torch.dtype, fused: bool) -> None:
    torch.manual_seed(0)
    p, q = (torch.nn.Parameter(torch.linspace(-1, 1, 33, dtype=dtype)) for _ in range(2))
    idle = torch.nn.Parameter(torch.ones(3, dtype=dtype))  # without a gradient it stays
    told = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.01, "fused": fused}
    ours, theirs = AdamW([p, idle], **told), torch.optim.AdamW([q], **told)
    for _ in range(5):
        p.grad = torch.randn_like(p)
        q.grad = p.grad.clone()
        ours.step()
        theirs.step()
    assert torch.equal(p, q) and idle.tolist() == [1, 1, 1] and "master" not in ours.state[p]


def test_nobody_imports_the_compiler() -> None:
    code = """
        import sys, torch
        from gruppo.train.optim import AdamW
        p = torch.nn.Parameter(torch.ones(3))
        optimiser = AdamW([p], lr=1.0, betas=(0.9, 0.95), weight_decay=0.0)
        p.grad = torch.ones(3)
        optimiser.step()
        optimiser.load_state_dict(optimiser.state_dict())
        optimiser.zero_grad()
        sys.exit("torch._dynamo" in sys.modules)
    """
    lines = "\n".join(line.strip() for line in code.splitlines())
    assert subprocess.run([sys.executable, "-c", lines], check=False, timeout=120).returncode == 0


def test_float32_copies_of_bfloat16_weights_are_not_rounded() -> None:
    p, optimiser = stepped()
    q, other = stepped()
    restore_optimiser(other, optimiser_tensors(optimiser))
    assert {x.dtype for x in other.state[q].values()} == {torch.float32}
    for _ in range(3):
        _step(p, optimiser)
        _step(q, other)
    assert torch.equal(optimiser.state[p]["master"], other.state[q]["master"]) and torch.equal(p, q)


@pytest.mark.parametrize(("before", "after"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_a_checkpoint_of_another_precision_goes_on(before: torch.dtype, after: torch.dtype) -> None:
    """As by --resume model.dtype=… --allow-changes: the moments are kept, and the weights are updated in float32."""
    told = {"lr": 1e-4, "betas": (0.9, 0.95), "weight_decay": 0.0}
    p, q = (torch.nn.Parameter(torch.linspace(-1, 1, 8).bfloat16().to(dtype)) for dtype in (before, after))
    old, new = AdamW([p], **told), AdamW([q], **told)
    p.grad, q.grad = torch.full_like(p, 0.25), torch.full_like(q, 0.25)  # the same number in both
    old.step()
    restore_optimiser(new, optimiser_tensors(old))
    old.step()
    new.step()
    assert torch.equal(new.state[q]["exp_avg"], old.state[p]["exp_avg"]) and new.state[q]["step"] == 2
    weight = new.state[q].get("master", q)
    assert weight.dtype == torch.float32 and torch.equal(q, weight.to(after))
