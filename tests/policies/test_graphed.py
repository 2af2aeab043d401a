"""Small training passes: filled up to a few shapes they give the same, and so do their graphs on a GPU."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gruppo.data import Inputs
from gruppo.policies import TinyConfig, TinyTransformer, graphed
from gruppo.policies.graphed import Filled, rounded, shape_of, through
from gruppo.policies.layout import packed
from gruppo.policies.varlen import varlen_of

SHAPE = TinyConfig(vocab=50, dim=64, layers=2, heads=4, kv_heads=2, ffn=64, context=512)


def on_gpu(test: Callable[..., None]) -> Any:
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")(test))


def made(device: str = "cpu", dtype: torch.dtype = torch.float64) -> TinyTransformer:
    model = TinyTransformer(SHAPE)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(8.0 if device == "cpu" else 2.0)  # so that attention is not flat
    return model.to(device, dtype)


def tree(model: TinyTransformer, lengths: list[int], shared: int, seed: int = 0) -> Inputs:
    draw = np.random.default_rng(seed)
    prompt = draw.integers(0, 50, shared)
    whole = [np.concatenate([prompt, draw.integers(0, 50, n)]) for n in lengths]
    return packed(whole, model.device, 0.1 if shared else float("inf")).tree()[0]


def gradient(model: TinyTransformer, y_MD: Tensor) -> list[Tensor]:
    model.zero_grad()
    (y_MD * torch.linspace(-1, 1, y_MD.numel(), device=y_MD.device).view_as(y_MD)).sum().backward()
    return [y_MD.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def off(a: list[Tensor], b: list[Tensor]) -> float:
    x, y = (torch.cat([t.flatten().double() for t in some]) for some in (a, b))
    return float((x - y).norm() / y.norm())


@given(st.integers(1, 10_000))
def test_shapes_are_few_and_little_larger(n: int) -> None:
    assert n <= rounded(n) < n + max(128, n / 4) and rounded(n) % 128 == 0
    assert len({rounded(k) for k in range(1, n + 1)}) <= 4 * n.bit_length()


@pytest.mark.parametrize("shared", [0, 30])
@pytest.mark.parametrize("lengths", [[1], [63], [64], [5, 1, 40], [20, 20, 17], [3] * 9])
def test_what_fills_a_pass_up_changes_nothing(lengths: list[int], shared: int) -> None:
    model = made()
    inputs = tree(model, lengths, shared)
    seen, x_MD = varlen_of(inputs, model.context), model.model.embed_tokens(inputs.ids_M)
    wanted = gradient(model, through(model, x_MD, inputs.pos_M, seen))

    filled = Filled(shape_of(seen, len(x_MD)), x_MD)
    for junk in (filled.x_MD, filled.pos_M, filled.seen.starts, filled.seen.ends, filled.seen.key_C):
        assert junk is not None
        junk.fill_(7)  # as a pass before it has left them
    filled.fill(x_MD, inputs.pos_M, seen)
    x_MD = model.model.embed_tokens(inputs.ids_M)
    whole_MD = torch.cat([x_MD, filled.x_MD[len(x_MD) :]])
    found = gradient(model, through(model, whole_MD, filled.pos_M, filled.seen)[: len(x_MD)])
    assert off(found, wanted) < 1e-12


def test_where_memory_runs_out_the_model_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing more is recorded; another error is nobody's to hide."""
    model, tried = made(), list[int]()

    def full(parts: Any, memory: Any) -> Any:
        tried.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory") if len(tried) == 1 else RuntimeError("another one")

    monkeypatch.setattr(graphed, "recorded", full)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    inputs = tree(model, [20, 5, 60], 30)
    seen, x_MD = varlen_of(inputs, model.context), model.model.embed_tokens(inputs.ids_M)
    graphs = graphed.Graphs(model)
    assert [graphs(model, x_MD, inputs.pos_M, seen) for _ in range(6)] == [None] * 6 and len(tried) == 1
    with pytest.raises(RuntimeError, match="another one"):
        graphs = graphed.Graphs(model)
        for _ in range(3):
            graphs(model, x_MD, inputs.pos_M, seen)
    monkeypatch.setattr(graphed, "LARGEST", 100)
    graphs = graphed.Graphs(model)
    assert [graphs(model, x_MD, inputs.pos_M, seen) for _ in range(6)] == [None] * 6 and not graphs.grads


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_graphs_give_what_the_model_gives(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("cuda", dtype)
    some = [tree(model, [20 + seed, 5, 1 + 90 * (seed % 3)], 30 * (seed % 2), seed) for seed in range(24)]
    with monkeypatch.context() as patch:
        patch.setattr(graphed, "SMALL", 0)
        wanted = [gradient(model, model(x)[0]) for x in some]
    for _ in range(3):
        found = [gradient(model, model(x)[0]) for x in some]
    assert len(graphed._GRAPHS[model].runs) > 2
    for a, b in zip(found, wanted, strict=True):
        assert off(a, b) < {torch.float32: 1e-5, torch.bfloat16: 0.02}[dtype]


@on_gpu
def test_weights_that_change_move_or_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("cuda", torch.float32)
    inputs = tree(model, [20, 5, 60], 30)

    def checked() -> None:
        found = [gradient(model, model(inputs)[0]) for _ in range(4)]
        with monkeypatch.context() as patch:
            patch.setattr(graphed, "SMALL", 0)
            wanted = gradient(model, model(inputs)[0])
        assert all(off(x, wanted) < 1e-5 for x in found)

    checked()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.01)  # in place, as an optimiser does
    checked()
    for p in model.parameters():
        p.data = p.data.clone()  # elsewhere, as when weights are stacked
    checked()
    model.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    checked()
    assert off([copy.deepcopy(model)(inputs)[0].detach()], [model(inputs)[0].detach()]) < 1e-5


@on_gpu
def test_two_passes_before_a_gradient_and_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("cuda", torch.float32)
    one, two = tree(model, [20, 5, 60], 30), tree(model, [25, 9, 50], 30, 1)

    def both() -> list[Tensor]:
        return gradient(model, torch.cat([model(one)[0], model(two)[0]]))

    def in_turn() -> list[Tensor]:
        model.zero_grad()
        for x in (one, two, one):
            model(x)[0].square().sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    for work in (both, in_turn):
        for _ in range(4):
            found = work()
        with monkeypatch.context() as patch:
            patch.setattr(graphed, "SMALL", 0)
            wanted = work()
        assert off(found, wanted) < 1e-5
    y_MD = model(one)[0]
    assert type(y_MD.grad_fn).__name__ == "_ReplayedBackward"
    y_MD.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one gradient"):
        y_MD.sum().backward()
