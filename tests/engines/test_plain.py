"""On a CPU our transformer is sampled from in fewer operations: bit for bit as its modules compute it."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gruppo.engines import NativeEngine, Request, complete
from gruppo.engines.plain import plain_of
from gruppo.kernels.rms import rms_norm
from gruppo.policies import Lora, TinyConfig, TinyTransformer, clone
from gruppo.policies.layout import packed
from gruppo.policies.lora import Unadapted, add_lora

SMALL = TinyConfig(vocab=31, dim=24, layers=2, heads=4, ffn=40, context=64)
SHAPES = {
    "llama": SMALL,
    "shared heads": replace(SMALL, kv_heads=2),
    "own head": replace(SMALL, tied=False),
    "biases": replace(SMALL, model_type="qwen2", qkv_bias=True),
    "norms of queries and keys": replace(SMALL, model_type="qwen3", qk_norm=True, head_dim=10, kv_heads=2),
}


def drawn(config: TinyConfig, dtype: torch.dtype) -> TinyTransformer:
    model = TinyTransformer(config, seed=3).to(dtype)
    with torch.no_grad():
        for p in model.parameters():  # norms that are not 1, biases that are not 0
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_it_is_the_model_bit_for_bit(config: TinyConfig, dtype: torch.dtype) -> None:
    model = drawn(config, dtype)
    plain = plain_of(model)
    assert plain is not None
    rng = np.random.default_rng(0)
    stem = rng.integers(0, 31, 9)
    sequences = [np.append(stem, rng.integers(0, 31, n)) for n in (1, 4, 4)] + [rng.integers(0, 31, 5)]
    with torch.inference_mode():
        for some in (sequences, sequences[1:3], sequences[:1]):
            for share in (0.5, 2.0):  # as a tree, and as lines
                tree, _ = packed(some, share=share).tree()
                for a, b in zip(plain.prefill(tree), model.prefill(tree), strict=True):
                    assert torch.equal(a, b)
        inputs = packed(sequences)
        length = torch.tensor([len(s) for s in sequences])
        caches = [model.cache(4, 14) for _ in range(2)]
        for cache in caches:
            cache.put(0, model.prefill(inputs)[1], length.cumsum(0) - length, length, int(length.max()))
        for t in range(4):  # the cache grows on the way
            ids_B, pos_B = torch.from_numpy(rng.integers(0, 31, 4)), length + t
            a, b = (m.decode(ids_B, pos_B, c) for m, c in zip((plain, model), caches, strict=True))
            assert torch.equal(a, b) and torch.equal(plain.head(a), model.head(b))


def test_it_follows_the_weights() -> None:
    model = drawn(SMALL, torch.float64)
    engine, requests = NativeEngine({"policy": model}, eos=None), [Request(np.array([1, 5, 7]), 6, key=0)]
    for _ in range(2):
        (found,) = asyncio.run(complete(engine, requests))
        wanted = engine.logprobs([requests[0].prefix], [found.ids])[0]
        assert np.allclose(found.logp, wanted, atol=1e-12)
        for p in model.parameters():
            p.data = p.data * 0.5  # in another place
        engine.sync(engine.version + 1, {})


def test_what_wraps_a_module_or_listens_is_called() -> None:
    model = drawn(SMALL, torch.float32)
    assert plain_of(model) is not None and plain_of(clone(model)) is not None
    hook = model.model.norm.register_forward_hook(lambda *_: None)
    assert plain_of(model) is None
    hook.remove()
    assert plain_of(model) is not None
    assert plain_of(clone(model).to(torch.bfloat16)) is None
    replaced = clone(model)
    replaced.model.norm.forward = lambda x: x  # type: ignore[method-assign]
    assert plain_of(replaced) is None
    pytest.importorskip("peft")
    add_lora(model, Lora(rank=2))
    assert plain_of(model) is None and plain_of(Unadapted(model)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 24), (7, 192), (150, 33), (5, 4, 48), (0, 8)])
def test_the_norm_is_pytorchs_bit_for_bit(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(s, generator=generator).to(dtype) for s in (shape, shape[-1:]))
    assert torch.equal(rms_norm(x, weight, 1e-5), F.rms_norm(x, weight.shape, weight, 1e-5))
