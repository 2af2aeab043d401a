"""Attention with lengths equals attention over padded lines: sequences, trees, and what comes after a cached past."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gruppo.data import Inputs
from gruppo.policies import TinyConfig, TinyTransformer
from gruppo.policies.layout import Past, packed

MARKS = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
KINDS = {("cpu", torch.float64): 1e-9, ("cuda", torch.float32): 1e-4, ("cuda", torch.bfloat16): 0.05}


@pytest.fixture(params=[pytest.param(k, marks=MARKS if k[0] == "cuda" else []) for k in KINDS])
def model(request: pytest.FixtureRequest) -> TinyTransformer:
    shape = TinyConfig(vocab=50, dim=64, layers=2, heads=4, kv_heads=2, ffn=64, context=512)
    model = TinyTransformer(shape)
    with torch.no_grad():
        for p in model.parameters():
            # So that attention is not flat. With 8, rounding in float32 moves gradients by 6e-4 (in bfloat16 by 1).
            p.mul_(8.0 if request.param[0] == "cpu" else 2.0)
    return model.to(*request.param)


def sequences() -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    prompt = draw.integers(0, 50, 40)
    forks = [np.concatenate([prompt, draw.integers(0, 50, n)]) for n in (1, 30, 70)]
    return [*forks, *(draw.integers(0, 50, n) for n in (1, 2, 200))]


def both(model: TinyTransformer, inputs: Inputs, past: Past | None, patch: pytest.MonkeyPatch) -> list[list[Tensor]]:
    """Hidden states, and the gradient of a function of them, with lengths and with padded lines."""
    found = []
    for lengths in (True, False):
        patch.setattr("gruppo.policies.tiny.can_varlen", lambda x, d, yes=lengths: yes)
        model.zero_grad()
        hidden, _ = model(inputs, past=past)
        (hidden * torch.linspace(-1, 1, hidden.shape[1], device=hidden.device)).sum().backward()
        grads = [p.grad.flatten().double() for p in model.parameters() if p.grad is not None]
        found.append([hidden.detach().double(), torch.cat(grads)])
    return found


def agree(found: list[list[Tensor]], model: TinyTransformer) -> None:
    limit = KINDS[model.device.type, model.output.weight.dtype]
    for a, b in zip(*found, strict=True):
        assert (off := float((a - b).norm() / b.norm())) <= limit, off


@pytest.mark.parametrize("share", [float("inf"), 0.1])
def test_sequences_and_trees(model: TinyTransformer, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, row_M = packed(sequences(), model.device, share).tree()
    assert (row_M is None) == (share == float("inf"))
    agree(both(model, tree, None, monkeypatch), model)


def test_after_a_past(model: TinyTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, known = sequences(), np.array([40, 40, 7, 0, 1, 150])
    with torch.no_grad():
        hidden, kv = model.prefill(packed(whole, model.device))
    start = np.cumsum([len(s) for s in whole]) - [len(s) for s in whole]
    new = packed([s[n:] for s, n in zip(whole, known, strict=True)], model.device, after=known)
    found = both(model, new, Past(kv, start, known), monkeypatch)
    agree(found, model)
    at = np.concatenate([np.arange(a + n, a + len(s)) for a, n, s in zip(start, known, whole, strict=True)])
    limit = KINDS[model.device.type, model.output.weight.dtype]
    again = hidden[torch.from_numpy(at).to(model.device)].double()
    assert float((found[0][0] - again).norm() / again.norm()) <= limit


def test_nothing(model: TinyTransformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gruppo.policies.tiny.can_varlen", lambda x, d: True)
    assert model(packed([], "cpu").to(model.device))[0].shape == (0, 64)
