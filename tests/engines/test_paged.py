"""Rows in pages, with the plain twins of the kernels: the same completions as the engine of the CPU, page for page."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gruppo.engines import Completion, NativeEngine, Request, complete
from gruppo.engines.base import NotFinite
from gruppo.engines.graphs import Decoder, Stack, bucket
from gruppo.engines.paged import WINDOW, PagedStream, decoder_of, own_pages
from gruppo.engines.pages import SCRATCH, Pool, pages_for
from gruppo.kernels.attention import PAGE
from gruppo.policies import TinyConfig, TinyTransformer
from gruppo.policies.lora import Lora, add_lora

EOS = 2


@pytest.fixture(scope="module", params=["qwen2", "qwen3"])
def model(request: pytest.FixtureRequest) -> TinyTransformer:
    """With biases of q, k and v; or with their norms, and a head of its own."""
    own: dict[str, Any] = {"qwen2": {"qkv_bias": True}, "qwen3": {"qk_norm": True, "head_dim": 12, "tied": False}}
    shape = TinyConfig(
        vocab=40, dim=32, layers=2, heads=4, kv_heads=2, ffn=64, model_type=request.param, **own[request.param]
    )
    model = TinyTransformer(shape).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()), dtype=p.dtype))
    return model


def decoder(model: TinyTransformer, pages: int = 400, rows: int = 16) -> Decoder:
    c = model.config
    pool = Pool(model.layers, pages, c.kv_heads, c.head_dim, torch.float64, torch.device("cpu"))
    return Decoder(model, pool, rows, WINDOW)


def mixed(count: int = 30) -> list[Request]:
    """Groups of one to three requests with one prompt; lengths around the borders of pages; several temperatures."""
    draw, out = np.random.default_rng(0), list[Request]()
    for i in range(count):
        length = int(draw.choice([1, 5, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE]))
        prefix = np.concatenate([[1], draw.integers(3, 40, length - 1)])
        for j in range(int(draw.integers(1, 4))):
            most, warm = int(draw.choice([1, 2, WINDOW, WINDOW + 1, 70])), float(draw.choice([1.0, 0.7, 1.4]))
            out.append(Request(prefix, most, key=100 * i + j, temperature=warm))
    return out


def drawn(stream: PagedStream) -> dict[int, Completion]:
    found: dict[int, Completion] = {}
    while stream.busy:
        for i, completion in stream.step():
            assert i not in found
            found[i] = completion
    return found


def same(found: dict[int, Completion], wanted: list[Completion]) -> None:
    assert sorted(found) == list(range(len(wanted)))
    for i, w in enumerate(wanted):
        f = found[i]
        assert np.array_equal(f.ids, w.ids) and f.reason == w.reason and np.array_equal(f.version, w.version)
        assert np.allclose(f.logp, w.logp, atol=2e-6)
        assert (f.allowed is None) == (w.allowed is None)
        for a, b in zip(f.allowed or (), w.allowed or (), strict=True):
            assert np.array_equal(a, b)
        if w.topk is not None and f.topk is not None:
            assert np.array_equal(f.topk[0], w.topk[0]) and np.allclose(f.topk[1], w.topk[1], atol=2e-6)


@pytest.mark.parametrize("rows", [3, 16])
@pytest.mark.parametrize("how", ["plain", "truncated"])
def test_the_same_completions(model: TinyTransformer, rows: int, how: str) -> None:
    requests = mixed()
    if how == "truncated":
        ways: list[dict[str, Any]] = [{"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.7, "topk_logprobs": 2}, {}]
        requests = [replace(r, **ways[i % 4]) for i, r in enumerate(requests)]
    wanted = asyncio.run(complete(NativeEngine({"policy": model}, eos=EOS), requests))
    assert {c.reason for c in wanted} == {"stop", "length"}
    d = decoder(model, rows=rows)
    stream = PagedStream(d, requests, (EOS,), 0, 500)
    same(drawn(stream), wanted)
    assert d.pool.free == 399 and stream.prefilled <= sum(len(r.prefix) for r in requests)


def test_a_prompt_is_computed_and_stored_once(model: TinyTransformer) -> None:
    prefix = np.arange(3, 3 + 3 * PAGE // 2 * 2) % 37 + 3  # three pages, full
    requests = [Request(prefix, 1 + PAGE, key=i) for i in range(8)]
    d = decoder(model)
    stream = PagedStream(d, requests, (), 0, 10_000)
    stream.step()
    assert stream.prefilled == len(prefix)
    own = 8 * (pages_for(len(prefix) + 1 + PAGE) - 3)
    assert 399 - d.pool.free == 3 + own
    assert d.pool.users[stream.pages[0][0]] == 8
    drawn(stream)
    assert d.pool.free == 399


def test_a_caller_that_goes_away_frees_its_pages(model: TinyTransformer) -> None:
    d = decoder(model)
    stream = PagedStream(d, [Request(np.array([1, 5, 6]), 70, key=i) for i in range(30)], (), 0, 500)
    stream.step()
    assert d.pool.free < 399
    stream.close()
    assert d.pool.free == 399 and not stream.busy


def test_two_streams_share_a_decoder(model: TinyTransformer) -> None:
    d, requests = decoder(model), mixed(8)
    wanted = asyncio.run(complete(NativeEngine({"policy": model}, eos=EOS), requests))
    streams = [PagedStream(d, requests, (EOS,), 0, 500) for _ in range(2)]
    found: list[dict[int, Completion]] = [{}, {}]
    while any(s.busy for s in streams):
        for s, mine in zip(streams, found, strict=True):
            mine |= dict(s.step()) if s.busy else {}
    for mine in found:
        same(mine, wanted)


def test_few_pages_mean_few_rows_and_the_same_completions(model: TinyTransformer) -> None:
    requests = mixed(8)
    wanted = asyncio.run(complete(NativeEngine({"policy": model}, eos=EOS), requests))
    most = max(own_pages(r) + pages_for(len(r.prefix)) for r in requests)
    same(drawn(PagedStream(decoder(model, pages=most + 1), requests, (EOS,), 0, 500)), wanted)


def test_a_pool_too_small_for_one_request_says_what_fits(model: TinyTransformer) -> None:
    long = Request(np.arange(3, 40), 3 * PAGE, key=0)
    with pytest.raises(ValueError, match=r"needs 5 pages of 64 tokens, and the cache has 3. Use at most 91 max_tokens"):
        PagedStream(decoder(model, pages=4), [long], (), 0, 500).step()
    assert len(drawn(PagedStream(decoder(model, pages=4), [replace(long, max_tokens=91)], (), 0, 500))[0].ids) == 91


def test_the_whole_context(model: TinyTransformer) -> None:
    """A row that ends at the last position goes on within its window, and harms nobody."""
    end = model.context
    requests = [Request(np.arange(end - 3) % 37 + 3, 3, key=0), Request(np.array([1]), end - 1, key=1)]
    wanted = asyncio.run(complete(NativeEngine({"policy": model}, eos=None), requests))
    same(drawn(PagedStream(decoder(model), requests, (), 0, 10_000)), wanted)


def test_weights_that_are_lost_end_the_call(model: TinyTransformer) -> None:
    bad = TinyTransformer(model.config).double()
    with torch.no_grad():
        bad.model.norm.weight.fill_(torch.nan)
    with pytest.raises(NotFinite, match="not finite"):
        PagedStream(decoder(bad), [Request(np.array([1]), 5, key=0)], (), 0, 500).step()


def test_stacked_weights_are_stored_once_and_follow_updates() -> None:
    layers = [torch.nn.Linear(4, n) for n in (3, 2, 5)]
    x = torch.randn(6, 4)
    wanted = torch.cat([m(x) for m in layers], -1)
    stack = Stack(layers)
    assert Stack(layers).weight.data_ptr() == stack.weight.data_ptr()
    assert torch.allclose(stack(x), wanted)
    with torch.no_grad():
        for m in layers:
            m.weight.mul_(2.0)
            m.bias.zero_()
    assert torch.allclose(stack(x), torch.cat([m(x) for m in layers], -1))
    assert all(p.is_leaf and p.requires_grad for m in layers for p in m.parameters())


def test_an_adapter_is_merged_for_each_version(model: TinyTransformer) -> None:
    adapted = TinyTransformer(model.config).double().eval()
    adapted.load_state_dict(model.state_dict())
    add_lora(adapted, Lora(rank=2))
    d, requests = decoder(adapted), mixed(6)
    for version in range(2):
        wanted = asyncio.run(complete(NativeEngine({"policy": adapted}, eos=EOS), requests))
        found = drawn(PagedStream(d, requests, (EOS,), version, 500))
        same(found, [replace(c, version=np.full_like(c.version, version)) for c in wanted])
        with torch.no_grad():
            for name, p in adapted.named_parameters():
                if "lora_B" in name:
                    p.normal_(generator=torch.Generator().manual_seed(0))


def test_a_decoder_is_kept_while_it_fits(model: TinyTransformer) -> None:
    short, long = [Request(np.array([1]), 5, key=0)], [Request(np.array([1]), 250, key=0)]
    first = decoder_of(model, short, 1, None)
    assert decoder_of(model, short, 1, first) is first
    wider = decoder_of(model, long, 1, first)
    assert wider is not first and decoder_of(model, short, 1, wider) is wider
    moved = TinyTransformer(model.config).double()
    kept = decoder_of(moved, short, 4, None)
    moved.model.norm.weight.data = moved.model.norm.weight.data.clone()  # the graphs would read the old ones
    assert decoder_of(moved, short, 4, kept) is not kept


def test_buckets_waste_little() -> None:
    for rows in (1, 100, 256, 512):
        sizes = {bucket(n, rows) for n in range(1, rows + 1)}
        assert all(n <= bucket(n, rows) <= max(n + 31, 1) and bucket(n, rows) <= rows for n in range(1, rows + 1))
        assert len(sizes) <= 11 + rows // 32


def test_pages_are_counted() -> None:
    pool = Pool(1, 6, 1, 2, torch.float32, torch.device("cpu"))
    a = pool.take(3)
    assert SCRATCH not in a and pool.free == 2
    pool.share(a[:1])
    pool.drop(a)
    assert pool.free == 4 and pool.users[a[0]] == 1
    pool.drop(a[:1])
    assert pool.free == 5
    with pytest.raises(ValueError, match="6 pages are wanted, and 5 of 5 are free"):
        pool.take(6)
