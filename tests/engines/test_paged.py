"""Rows in pages, with the plain twins of the kernels: the same completions as the engine of the CPU, page for page."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from gruppo.engines import Completion, NativeEngine, Request, complete
from gruppo.engines.base import NotFinite
from gruppo.engines.graphs import Decoder, Stack, bucket
from gruppo.engines.paged import WIDEST, WINDOW, PagedStream, decoder_of
from gruppo.engines.pages import SCRATCH, Pool, pages_for
from gruppo.engines.prefill import Prefiller
from gruppo.engines.steer import Move
from gruppo.kernels.attention import PAGE
from gruppo.policies import TinyConfig, TinyTransformer
from gruppo.policies.layout import packed
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


# Tests of what is the same for both: one of them is enough every day.
one_of_two = pytest.mark.parametrize("model", ["qwen3", pytest.param("qwen2", marks=pytest.mark.slow)], indirect=True)


@pytest.fixture
def paged(model: TinyTransformer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., NativeEngine]:
    """An engine that pages on the CPU."""

    def make(role: TinyTransformer = model, **settings: Any) -> NativeEngine:
        with monkeypatch.context() as patch:
            patch.setattr("gruppo.engines.native.can_page", lambda _: True)
            engine = NativeEngine({"policy": role}, **{"eos": EOS, **settings})
            engine._stream("policy")
        return engine

    return make


def pool_of(engine: NativeEngine) -> Pool:
    return cast(PagedStream, engine._streams["policy"]).decoder.pool  # type: ignore[union-attr]


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


def same(found: list[Completion], wanted: list[Completion]) -> None:
    for f, w in zip(found, wanted, strict=True):
        assert np.array_equal(f.ids, w.ids) and f.reason == w.reason and np.array_equal(f.version, w.version)
        assert np.allclose(f.logp, w.logp, atol=2e-6)
        assert (f.allowed is None) == (w.allowed is None)
        for a, b in zip(f.allowed or (), w.allowed or (), strict=True):
            assert np.array_equal(a, b)
        if w.topk is not None and f.topk is not None:
            assert np.array_equal(f.topk[0], w.topk[0]) and np.allclose(f.topk[1], w.topk[1], atol=2e-6)


WAYS: dict[str, list[dict[str, Any]]] = {
    "plain": [{}],
    "truncated": [{"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.7, "topk_logprobs": 2}, {}],
    "texts": [{"stop_text": ("7",)}, {}],
    "steered": [{"steer": lambda ids, pos, logits: Move(force=5) if pos % 9 == 0 else None}, {}],
}


@pytest.mark.parametrize("rows", [3, 16])
@pytest.mark.parametrize("how", WAYS)
def test_the_same_completions(model: TinyTransformer, paged: Callable[..., NativeEngine], rows: int, how: str) -> None:
    ways = WAYS[how]
    requests = [replace(r, **ways[i % len(ways)]) for i, r in enumerate(mixed(12))]
    settings: dict[str, Any] = {"decode": lambda ids: ",".join(map(str, ids))}
    wanted = asyncio.run(complete(NativeEngine({"policy": model}, eos=EOS, **settings), requests))
    assert {c.reason for c in wanted} == {"stop", "length"}
    engine = paged(max_rows=rows, **settings)
    same(asyncio.run(complete(engine, requests)), wanted)
    assert pool_of(engine).free == len(pool_of(engine).users) - 1
    assert engine.prefilled <= sum(len(r.prefix) for r in requests)


@one_of_two
def test_the_kernels_of_few_rows_give_the_same(
    model: TinyTransformer, paged: Callable[..., NativeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = asyncio.run(complete(NativeEngine({"policy": model}, eos=EOS), mixed(6)))
    monkeypatch.setattr("gruppo.engines.graphs.fits", lambda _: True)
    monkeypatch.setattr("gruppo.engines.graphs.swiglu", None)  # what only many rows need
    engine = paged()
    same(asyncio.run(complete(engine, mixed(6))), wanted)


@one_of_two
def test_requests_join_a_running_batch(model: TinyTransformer, paged: Callable[..., NativeEngine]) -> None:
    requests = mixed(8)
    wanted = asyncio.run(complete(NativeEngine({"policy": model}, eos=EOS), requests))

    async def one(engine: NativeEngine, i: int) -> Completion:
        for _ in range(i % 5):
            await asyncio.sleep(0)
        return await engine.ask(requests[i])

    async def all_of(engine: NativeEngine) -> list[Completion]:
        return await asyncio.gather(*(one(engine, i) for i in range(len(requests))))

    same(asyncio.run(all_of(paged(lockstep=False))), wanted)


@one_of_two
def test_a_dialogue_goes_on_from_parked_rows(model: TinyTransformer, paged: Callable[..., NativeEngine]) -> None:
    engine, plain = paged(), NativeEngine({"policy": model}, eos=EOS, cache_tokens=0)
    ids = np.array([1, *range(3, 39)])
    for turn in range(4):
        before = engine.prefilled
        found, wanted = (asyncio.run(e.ask(Request(ids, 40, key=turn))) for e in (engine, plain))
        same([found], [wanted])
        new = 37 if turn == 0 else 11  # the last token of the answer, and what was observed
        assert engine.prefilled - before == new
        ids = np.concatenate([ids, found.ids, np.arange(3, 13)])
    assert pool_of(engine).free == len(pool_of(engine).users) - 1


def test_a_prompt_is_computed_and_stored_once(model: TinyTransformer, paged: Callable[..., NativeEngine]) -> None:
    prefix = np.arange(2 * PAGE + 5) % 37 + 3
    requests = [Request(prefix, 1 + PAGE, key=i) for i in range(8)]
    engine = paged(eos=None)

    async def first() -> None:
        stream = engine.generate(requests)
        task = asyncio.ensure_future(anext(stream))
        while not engine.prefilled:
            await asyncio.sleep(0)
        assert engine.prefilled == len(prefix)
        pages = cast(PagedStream, engine._streams["policy"]).pages
        assert len({p for row in pages for p in row}) == 2 + 8 * (pages_for(len(prefix) + 1 + PAGE) - 2)
        assert pool_of(engine).users[pages[0][0]] == 8
        await task
        await stream.aclose()  # the caller goes away: its pages are free

    asyncio.run(first())
    assert pool_of(engine).free == len(pool_of(engine).users) - 1


@one_of_two
def test_few_pages_mean_few_rows_and_the_same_completions(
    model: TinyTransformer, paged: Callable[..., NativeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = mixed(8)
    wanted = asyncio.run(complete(NativeEngine({"policy": model}, eos=EOS), requests))
    page = 2 * 2 * 2 * model.config.head_dim * PAGE * 8 / (1 << 30)  # of the memory that a CPU is said to have
    monkeypatch.setattr("gruppo.engines.paged.SHARE", 4.1 * page)
    engine = paged()
    same(asyncio.run(complete(engine, requests)), wanted)
    assert len(pool_of(engine).users) == 5
    monkeypatch.setattr("gruppo.engines.paged.SHARE", 3.1 * page)
    with pytest.raises(ValueError, match=r"needs 4 pages of 64 tokens.*has room for 3, that is 192 tokens"):
        asyncio.run(complete(paged(), [Request(np.arange(3, 40), 200, key=0)]))


@one_of_two
def test_the_whole_context(model: TinyTransformer, paged: Callable[..., NativeEngine]) -> None:
    """A row that ends at the last position goes on within its window, and harms nobody."""
    end = model.context
    requests = [Request(np.arange(end - 3) % 37 + 3, 3, key=0), Request(np.array([1]), end - 1, key=1)]
    wanted = asyncio.run(complete(NativeEngine({"policy": model}, eos=None), requests))
    same(asyncio.run(complete(paged(eos=None), requests)), wanted)


def test_weights_that_are_lost_end_the_call(model: TinyTransformer, paged: Callable[..., NativeEngine]) -> None:
    bad = TinyTransformer(model.config).double()
    with torch.no_grad():
        bad.model.norm.weight.fill_(torch.nan)
    with pytest.raises(NotFinite, match="not finite"):
        asyncio.run(complete(paged(bad), [Request(np.array([1]), 5, key=0)]))


@pytest.mark.parametrize(("where", "call"), [("take", 0), ("take", 1), ("take", 3), ("share", 1), ("write", 0)])
def test_a_failure_while_rows_get_pages_keeps_none_of_them(
    paged: Callable[..., NativeEngine], monkeypatch: pytest.MonkeyPatch, where: str, call: int
) -> None:
    requests = [Request(np.arange(2 * PAGE + 5) % 37 + 3, 2, key=i) for i in range(4)]
    engine, left, real = paged(max_rows=8), [call], getattr(Pool, where)

    def broken(self: Pool, *given: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            raise RuntimeError("a fault")
        return real(self, *given)

    monkeypatch.setattr(Pool, where, broken)
    with pytest.raises(RuntimeError, match="a fault"):
        asyncio.run(complete(engine, requests))
    pool = pool_of(engine)
    assert pool.free == len(pool.users) - 1 and pool.users.sum() == 1
    assert len(asyncio.run(complete(engine, requests))) == 4  # and it goes on


def test_stacked_weights_are_stored_once_and_follow_updates() -> None:
    layers = [torch.nn.Linear(4, n).double() for n in (3, 2, 5)]
    x = torch.randn(6, 4).double()
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


@one_of_two
def test_an_adapter_is_merged_for_each_version(model: TinyTransformer, paged: Callable[..., NativeEngine]) -> None:
    adapted = TinyTransformer(model.config).double().eval()
    adapted.load_state_dict(model.state_dict())
    add_lora(adapted, Lora(rank=2))
    engine, plain, requests = paged(adapted), NativeEngine({"policy": adapted}, eos=EOS), mixed(6)
    for _ in range(2):
        same(asyncio.run(complete(engine, requests)), asyncio.run(complete(plain, requests)))
        with torch.no_grad():
            for name, p in adapted.named_parameters():
                if "lora_B" in name:
                    p.normal_(generator=torch.Generator().manual_seed(0))
        for e in (engine, plain):
            e.sync(e.version + 1, {})


def test_a_decoder_is_kept_while_it_fits(model: TinyTransformer) -> None:
    first = decoder_of(model, 1, 4, [None])
    assert decoder_of(model, 1, 4, [first]) is first
    wider = decoder_of(model, 5, 4, [first])
    assert (
        wider is not first
        and decoder_of(model, 1, 4, [wider]) is wider
        and decoder_of(model, 1, 2, [wider]) is not wider
    )
    moved = TinyTransformer(model.config).double()
    kept = decoder_of(moved, 1, 4, [None])
    moved.model.norm.weight.data = moved.model.norm.weight.data.clone()  # the graphs would read the old ones
    assert decoder_of(moved, 1, 4, [kept]) is not kept


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


@pytest.mark.parametrize(("small", "kept"), [(0, 0), (1024, 32768), (1024, 150)])
def test_a_prefill_with_stacked_weights_is_that_of_the_model(
    model: TinyTransformer, small: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a tree, where a shared prefix is computed once; one that is filled up to a shape; where few are kept."""
    monkeypatch.setattr("gruppo.engines.prefill.SMALL", small)
    monkeypatch.setattr("gruppo.engines.prefill.KEPT", kept)
    stem = np.arange(3, 33)
    forks = [np.concatenate([stem, np.arange(5, 9)]), np.concatenate([stem, np.arange(20, 30)]), np.arange(7)]
    decoder = decoder_of(model, 2, 4, [None])
    prefill = Prefiller(decoder)
    with torch.no_grad():
        for some in (forks, forks[2:], [np.arange(30), np.arange(34)], forks):  # of 64 tokens: nothing to fill up
            for forked in (0.5, 2.0):
                tree, _ = packed(some, model.device, forked).tree()
                for got, wanted in zip(prefill(tree), model.prefill(tree), strict=True):
                    assert got.shape == wanted.shape and torch.allclose(got, wanted, atol=1e-10)
                assert sum(shape.tokens for shape in prefill.passes) <= kept


@one_of_two
def test_windows_grow_with_what_is_drawn_and_change_nothing(
    paged: Callable[..., NativeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [Request(np.array([1, 5 + i]), 250, key=i) for i in range(3)]
    found, steps = [], list[int]()
    plain = Decoder.step

    def counted(self: Decoder, live: int, draw: bool) -> torch.Tensor:
        steps[-1] += 1
        return plain(self, live, draw)

    def window(self: PagedStream) -> Any:
        steps.append(0)
        return one(self)

    one = PagedStream._window
    monkeypatch.setattr(PagedStream, "_window", window)
    monkeypatch.setattr(Decoder, "step", counted)
    for widest in (WINDOW, WIDEST):
        monkeypatch.setattr("gruppo.engines.paged.WIDEST", widest)
        steps.clear()
        found.append(asyncio.run(complete(paged(eos=None), asked)))
        assert (max(steps) > WINDOW) == (widest > WINDOW)
    for a, b in zip(*found, strict=True):
        assert np.array_equal(a.ids, b.ids) and np.array_equal(a.logp, b.logp)
