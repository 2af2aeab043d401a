"""Memory that runs out while sampling: fewer rows at once, the same answers."""

import asyncio

import numpy as np
import pytest
import torch

from gruppo.engines import NativeEngine, Request, complete


def drawn(policy, requests, **how):
    said: list[str] = []
    engine = NativeEngine({"policy": policy}, eos=2, say=said.append, **how)
    return engine, asyncio.run(complete(engine, requests)), said


def requests():
    rng = np.random.default_rng(0)
    return [Request(rng.integers(3, 23, 3 + i % 4), 10, key=i) for i in range(13)]


def limited(policy, monkeypatch, rows: int, name: str) -> None:
    whole = getattr(policy, name)

    def call(first, *args):
        size = len(first.ids_M) if name != "decode" else len(first)
        if size > rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(first, *args)

    monkeypatch.setattr(policy, name, call)


@pytest.mark.parametrize(("name", "rows"), [("decode", 4), ("prefill", 9)])
def test_fewer_rows_draw_the_same(make, monkeypatch, name, rows):
    policy = make()
    _, before, none = drawn(policy, requests())
    limited(policy, monkeypatch, rows, name)
    engine, after, said = drawn(policy, requests())
    assert not none and said and "out of memory while sampling" in said[0]
    assert engine.max_rows < 13
    for a, b in zip(before, after, strict=True):
        assert np.array_equal(a.ids, b.ids) and a.reason == b.reason
        np.testing.assert_allclose(a.logp, b.logp, atol=1e-9)
    failures = len(said)
    assert len(asyncio.run(complete(engine, requests()))) == 13 and len(said) == failures  # it is remembered


def test_a_single_row_that_does_not_fit_is_an_error_with_the_remedy(make, monkeypatch):
    policy = make()
    limited(policy, monkeypatch, 0, "decode")
    with pytest.raises(ValueError, match=r"a single row in flight.*sampling.max_tokens"):
        drawn(policy, requests())


def test_scoring(make, monkeypatch):
    policy = make()
    engine, _, _ = drawn(policy, requests())
    ids = [r.prefix for r in requests()]
    whole = engine.logprobs(ids, ids)
    limited(policy, monkeypatch, 20, "forward")
    for a, b in zip(whole, engine.logprobs(ids, ids), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)
    limited(policy, monkeypatch, 0, "forward")
    with pytest.raises(torch.OutOfMemoryError):
        engine.logprobs(ids, ids)


def test_several_ids_may_end_an_answer(make):
    policy = make()
    _, one, _ = drawn(policy, requests())
    engine = NativeEngine({"policy": policy}, eos=(2, *range(3, 12)))
    several = asyncio.run(complete(engine, requests()))
    for a, b in zip(one, several, strict=True):
        assert np.array_equal(a.ids[: len(b.ids)], b.ids)
        assert (b.reason == "stop") == (2 <= b.ids[-1] < 12)
        assert not any(2 <= i < 12 for i in b.ids[:-1])


def test_what_is_parked_goes_first(make, monkeypatch):
    """As many rows as before, if there was something to drop."""
    policy = make()
    engine, before, _ = drawn(policy, requests())
    said: list[str] = []
    engine.say = said.append

    async def asked():
        return await asyncio.gather(*(engine.ask(r) for r in requests()))

    asyncio.run(asked())
    whole, failed = policy.decode, []

    def full(*args):
        if len(engine.parked):
            failed.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(*args)

    monkeypatch.setattr(policy, "decode", full)
    for a, b in zip(asyncio.run(asked()), before, strict=True):
        assert np.array_equal(a.ids, b.ids)
    assert failed and not said and engine.max_rows == 1024
