"""What broke the engine when somebody tried: each once."""

import asyncio
import gc
from typing import Any

import numpy as np
import pytest
import torch

from gruppo.engines import Completion, NativeEngine, Request, complete
from gruppo.engines.paged import PagedStream
from gruppo.engines.steer import Move
from gruppo.policies import TinyConfig, TinyTransformer
from gruppo.policies.lora import Lora, add_lora

P = np.array([1, 5, 6, 7])


def model() -> TinyTransformer:
    return TinyTransformer(TinyConfig(vocab=40, dim=32, layers=2, heads=4, kv_heads=2, ffn=64)).double()


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gruppo.engines.native.can_page", lambda _: True)


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 20))


def test_a_bad_request_does_not_stop_the_wave() -> None:
    """A request that is refused when its wave begins fails alone."""
    engine = NativeEngine({"policy": model()}, eos=None)
    start = engine._start

    def picky(call: Any, requests: list[Request], remember: bool) -> None:
        if requests[0].key == 13:
            raise ValueError("no room")
        start(call, requests, remember)

    engine._start = picky  # type: ignore[method-assign]

    async def one(key: int) -> Completion | str:
        try:
            return await engine.ask(Request(P, 5, key=key))
        except ValueError as error:
            return str(error)

    found = run(engine.together([one(k) for k in (1, 13, 2, 3)]))
    assert found[1] == "no room" and all(isinstance(c, Completion) for c in (found[0], *found[2:]))


def test_no_request_is_no_wave() -> None:
    engine = NativeEngine({"policy": model()}, eos=None)

    async def nothing() -> list[Completion]:
        return await complete(engine, [])

    async def something() -> Completion:
        return await engine.ask(Request(P, 3, key=1))

    assert run(engine.together([nothing(), something()]))[0] == []


def test_an_adapter_that_changes_within_a_version(pages: None) -> None:
    torch.manual_seed(0)  # of the adapter
    policy = model()
    add_lora(policy, Lora(rank=2))
    engine = NativeEngine({"policy": policy}, eos=None)
    for _ in range(2):
        [c] = run(complete(engine, [Request(P, 12, key=1)]))
        # The old adapter would be off by much more; merged weights are rounded, and this adapter is large.
        np.testing.assert_allclose(c.logp, engine.logprobs([P], [c.ids])[0], atol=1e-4)
        with torch.no_grad():
            for name, p in policy.named_parameters():
                if "lora_B" in name:
                    p.normal_()


def test_a_longer_request_beside_a_shorter_one(pages: None) -> None:
    engine = NativeEngine({"policy": model()}, eos=None, max_rows=1, lockstep=False)

    async def both() -> list[Completion]:
        return await asyncio.gather(*(engine.ask(Request(P, n, key=n)) for n in (30, 200)))

    assert [len(c.ids) for c in run(both())] == [30, 200]


def test_rows_are_counted_in_the_order_in_which_they_are_admitted(pages: None) -> None:
    a, b = np.array([1, 2, 3]), np.array([1, 9, 9])
    engine = NativeEngine({"policy": model()}, eos=None, max_rows=4, lockstep=False)
    later = [Request(a, 5, key=1), Request(b, 5, key=2), Request(a, 150, key=3)]

    async def two() -> list[int]:
        first = asyncio.ensure_future(complete(engine, [Request(P, 30, key=0)]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [len(c.ids) for c in (*await complete(engine, later), *await first)]

    for _ in range(3):
        assert run(two()) == [5, 5, 150, 30]
    stream = engine._streams["policy"]
    assert isinstance(stream, PagedStream) and stream.decoder is not None
    assert stream.decoder.pool.free == len(stream.decoder.pool.users) - 1


def test_weights_can_be_trained_after_sampling_in_inference_mode(pages: None) -> None:
    policy = model()
    engine = NativeEngine({"policy": policy}, eos=None)
    with torch.inference_mode():
        run(complete(engine, [Request(P, 3, key=1)]))
    policy.model.layers[0].self_attn.q_proj(torch.randn(2, 32).double()).sum().backward()


BAD: list[dict[str, Any]] = [
    {"prefix": [1.5, 2.0]}, {"prefix": [[1, 2]]}, {"prefix": ["a"]}, {"max_tokens": 5.5}, {"key": None}, {"key": 1.5},
    {"stop": 5}, {"stop": None}, {"stop": (1.5,)}, {"payload": "x"}, {"top_k": 1.5}, {"topk_logprobs": 1.5},
    {"stop_text": (None,)}, {"stop_text": (b"b",)}, {"stop_text": "b"},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_a_request_of_wrong_types_is_refused_at_once(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Request(**({"prefix": P, "max_tokens": 3, "key": 1} | bad))


def test_numbers_of_numpy_are_numbers() -> None:
    r = Request([1, 2], np.int64(3), key=np.int64(5), stop=[np.int32(7)])  # type: ignore[arg-type]
    assert (r.max_tokens, r.key, r.stop, r.prefix.dtype) == (3, 5, (7,), np.int64)


@pytest.mark.parametrize(
    "move",
    [
        Move(allow=np.ones(40, bool)),  # type: ignore[arg-type]
        Move(allow=np.array([1.5])),  # type: ignore[arg-type]
        Move(force=3.7),  # type: ignore[arg-type]
        Move(add=np.full(40, np.nan)),
        Move(add=np.full(40, np.inf)),
        Move(add=np.full(40, -np.inf)),
        {"allow": [1]},
    ],
)
def test_a_bad_move_ends_its_own_call_alone(move: Any) -> None:
    engine = NativeEngine({"policy": model()}, eos=None, lockstep=False)

    async def both() -> list[Any]:
        bad = engine.ask(Request(P, 4, key=1, steer=lambda ids, pos, logits: move))
        return await asyncio.gather(bad, engine.ask(Request(P, 4, key=2)), return_exceptions=True)

    wrong, right = run(both())
    assert isinstance(wrong, ValueError) and "steer" in str(wrong) and isinstance(right, Completion)


def test_an_interrupt_in_the_middle_leaves_no_second_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(self: Any) -> Any:
        raise KeyboardInterrupt

    engine = NativeEngine({"policy": model()}, eos=None)
    monkeypatch.setattr("gruppo.engines.stream.Stream.step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(complete(engine, [Request(P, 3, key=1)]))
    gc.collect()
    assert "never retrieved" not in caplog.text
    monkeypatch.undo()
    assert len(run(complete(engine, [Request(P, 3, key=1)]))[0].ids) == 3  # and it can be used again
