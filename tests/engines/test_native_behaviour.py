"""The native engine: what is computed, what ends a row, what it refuses."""

import asyncio

import numpy as np
import pytest
import torch

from gruppo.engines import Engine, NativeEngine, Request, complete
from gruppo.engines.base import CAN_PROMISE, PROMISES
from gruppo.policies import Critic


def run(engine, requests):
    return asyncio.run(complete(engine, requests))


def engine_of(policy, **options):
    return NativeEngine({"policy": policy}, **options)


@pytest.mark.parametrize("max_rows", [1024, 20, 5, 1])
def test_a_groups_prompt_is_computed_once(make, max_rows):
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 23, n) for n in (4, 9, 6, 6)]
    requests = [Request(p, 3 + i % 4, key=i) for i in range(8) for p in prompts]
    engine = engine_of(make(), max_rows=max_rows, eos=None)
    run(engine, requests)
    assert engine.prefilled == 4 + 9 + 6 + 6
    run(engine, requests)  # nothing is kept between calls
    assert engine.prefilled == 2 * (4 + 9 + 6 + 6)


@pytest.mark.parametrize("max_rows", [1024, 10])
def test_retired_rows_are_not_computed(make, max_rows):
    rng = np.random.default_rng(1)
    requests = [Request(rng.integers(0, 23, 5), int(n), key=i) for i, n in enumerate(rng.integers(1, 40, 60))]
    engine = engine_of(make(), max_rows=max_rows)
    done = run(engine, requests)
    assert engine.decoded == sum(len(c.ids) - 1 for c in done)  # the first token comes from the prefill


def test_long_rows_outgrow_the_cache(make):
    """Far beyond the columns that a new cache holds, while other rows come and go."""
    policy = make(context=256)
    long = Request(np.array([1, 2]), 200, key=3)
    requests = [long, *(Request(np.arange(1 + i % 7), 5 + i % 9, key=10 + i) for i in range(50))]
    alone = run(engine_of(policy, eos=None), [long])[0]
    among = run(engine_of(policy, eos=None, max_rows=8), requests)
    assert among[0].ids.tolist() == alone.ids.tolist()
    assert [len(c.ids) for c in among] == [r.max_tokens for r in requests]


def test_unwritten_memory_is_never_read(make):
    """In deterministic mode PyTorch fills new memory with NaN: reading it would show in log-probabilities."""
    rng = np.random.default_rng(2)
    requests = [
        Request(rng.integers(0, 23, n), int(limit), key=i)
        for i, (n, limit) in enumerate(zip(rng.integers(1, 40, 60), rng.integers(1, 24, 60), strict=True))
    ]
    engine = engine_of(make(), max_rows=9)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        done = run(engine, requests)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(np.isfinite(c.logp).all() for c in done)


def test_stop_and_length(make):
    policy, prefix = make(), np.array([1, 7])
    free = run(engine_of(policy, eos=None), [Request(prefix, 30, key=5)])[0]
    assert (free.reason, len(free.ids)) == ("length", 30)
    word = int(free.ids[4])
    first = free.ids.tolist().index(word)
    for engine, stop in ((engine_of(policy, eos=word), ()), (engine_of(policy, eos=None), (word,))):
        c = run(engine, [Request(prefix, 30, key=5, stop=stop)])[0]
        assert c.reason == "stop"
        assert c.ids.tolist() == free.ids[: first + 1].tolist()  # the stop is a decision: it is in the ids
    last = run(engine_of(policy, eos=None), [Request(prefix, first + 1, key=5, stop=(word,))])[0]
    assert last.reason == "stop"  # both at once: it did stop by itself


def test_stops_of_one_request_do_not_stop_another(make):
    policy, prefix = make(), np.array([1, 7])
    free = run(engine_of(policy, eos=None), [Request(prefix, 30, key=5)])[0]
    stop = tuple(range(23))
    pair = [Request(prefix, 30, key=5, stop=stop), Request(prefix, 30, key=5)]
    short, long = run(engine_of(policy, eos=None), pair)
    assert len(short.ids) == 1
    assert long.ids.tolist() == free.ids.tolist()


def test_completions_come_in_the_order_in_which_they_end(make):
    async def order(engine, requests):
        return [(i, len(c.ids)) async for i, c in engine.generate(requests)]

    requests = [Request(np.array([1]), n, key=n) for n in (9, 2, 5)]
    assert asyncio.run(order(engine_of(make(), eos=None), requests)) == [(1, 2), (2, 5), (0, 9)]


def test_the_version_is_on_every_token_and_may_not_change_under_a_stream(make):
    engine = engine_of(make(), eos=None)
    engine.version = 7
    requests = [Request(np.array([1]), n, key=n) for n in (1, 4)]
    assert [c.version.tolist() for c in run(engine, requests)] == [[7], [7] * 4]
    assert run(engine, requests)[0].version.dtype == np.int32

    async def update_inside():
        async for _ in engine.generate(requests):
            engine.version += 1

    with pytest.raises(RuntimeError, match="version went from 7 to 8"):
        asyncio.run(update_inside())
    assert run(engine, requests)[1].version.tolist() == [8] * 4


def test_new_weights_are_used_at_once(make):
    policy = make()
    engine, request = engine_of(policy), Request(np.array([1]), 4, key=1, temperature=0.7)
    before = run(engine, [request])[0]
    with torch.no_grad():
        for p in policy.parameters():
            p.mul_(0.5)
    after = run(engine, [request])[0]
    np.testing.assert_allclose(after.logp, engine.logprobs([request.prefix], [after.ids], 0.7)[0], atol=1e-10)
    assert before.logp.tolist() != after.logp.tolist()


def test_the_consumer_keeps_gradients_and_the_model_its_mode(make):
    policy = make().train()
    engine, modes = engine_of(policy), []
    policy.model.embed_tokens.register_forward_hook(lambda m, a, y: modes.append((m.training, y.requires_grad)))

    async def look():
        async for _ in engine.generate([Request(np.array([1]), n, key=n) for n in (1, 3)]):
            assert torch.is_grad_enabled()
            assert not torch.is_inference_mode_enabled()
            assert policy.training

    asyncio.run(look())
    assert set(modes) == {(False, False)}
    assert policy.training
    policy.head(torch.zeros(1, 32, dtype=torch.float64)).sum().backward()


def test_streams_that_take_turns_all_draw_in_evaluation_mode(make):
    policy = make().train()
    engine, modes = engine_of(policy), []
    policy.model.embed_tokens.register_forward_hook(lambda m, a, y: modes.append(m.training))
    short, long = ([Request(np.array([1, 5]), n, key=n)] for n in (2, 6))
    alone = [run(engine, requests)[0].ids.tolist() for requests in (short, long)]
    modes.clear()

    async def at_once():
        return await asyncio.gather(*(complete(engine, requests) for requests in (short, long)))

    for order in (slice(None), slice(None, None, -1)):  # the first to come leaves first, or last
        short, long = (short, long)[order]
        assert [found[0].ids.tolist() for found in asyncio.run(at_once())] == alone[order]
        assert modes and not any(modes)
        assert policy.training


def test_topk_is_reported_where_asked(make):
    policy = make()
    requests = [Request(np.array([1]), 5, key=i, topk_logprobs=i, temperature=0.0 if i == 3 else 1.0) for i in range(4)]
    done = run(engine_of(policy, eos=None), requests)
    assert done[0].topk is None
    for i in (1, 2, 3):
        ids, logp = done[i].topk
        assert ids.shape == logp.shape == (5, i)
        assert (np.diff(logp) <= 0).all()
    assert done[3].ids.tolist() == done[3].topk[0][:, 0].tolist()  # greedy takes the first
    assert (done[3].topk[1][:, 0] < 0).all()  # before the truncation to a point mass
    everything = run(engine_of(policy, eos=None), [Request(np.array([1]), 2, key=0, topk_logprobs=23)])[0].topk
    np.testing.assert_allclose(np.exp(everything[1]).sum(1), 1)


def test_roles_sample_from_their_own_models(make):
    policy, teacher = make(), make(seed=9)
    engine = NativeEngine({"policy": policy, "teacher": teacher}, eos=None)
    requests = [Request(np.array([1]), 6, key=1, role=role) for role in ("teacher", "policy", "teacher")]
    a, b, c = run(engine, requests)
    assert a.ids.tolist() == c.ids.tolist() != b.ids.tolist()
    np.testing.assert_allclose(a.logp, engine.logprobs([np.array([1])], [a.ids], role="teacher")[0], atol=1e-10)
    np.testing.assert_allclose(b.logp, engine.logprobs([np.array([1])], [b.ids])[0], atol=1e-10)


def test_nothing_asked(make):
    assert run(engine_of(make()), []) == []
    assert engine_of(make()).logprobs([], []) == []


def test_what_it_can(make):
    engine = engine_of(make())
    assert isinstance(engine, Engine)
    assert engine.promises == PROMISES.keys() - {"stop_text"}  # which takes a decoder
    free = engine_of(make(), lockstep=False, decode=str)
    assert free.promises == PROMISES.keys() - {"lockstep"}


def test_it_promises_what_is_said_of_it_before_there_is_one(make, monkeypatch):
    assert engine_of(make(), decode=str).promises == CAN_PROMISE["native"]
    monkeypatch.setitem(CAN_PROMISE, "native", frozenset({"logp"}))
    assert engine_of(make(), decode=str).promises == {"logp"}


ONE = np.array([1])


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"prefix": np.zeros(0, np.int64)}, "prefix is empty"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"temperature": -0.5}, "temperature=-0.5"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"top_k": -1}, "top_k=-1"),
        ({"topk_logprobs": -1}, "topk_logprobs=-1"),
    ],
    ids=str,
)
def test_requests_that_make_no_sense(bad, says):
    with pytest.raises(ValueError, match=says):
        Request(**({"prefix": ONE, "max_tokens": 3, "key": 0} | bad))


def test_requests_that_the_model_cannot_serve(make):
    engine = engine_of(make())
    for request, says in (
        (
            Request(np.arange(20), 45, 0),
            r"20 \+ max_tokens=45 = 65 tokens, the context is 64.*max_tokens of at most 44",
        ),
        (Request(np.arange(64) % 20, 1, 0), r"prefix of 64 .*Use a shorter prefix \(the prompt, .*such as a hint\)"),
        (Request(np.arange(70) % 20, 1, 0), r"prefix of 70 .*Use a shorter prefix"),
        (Request(np.array([3, 23]), 4, 0), "id 23 is outside the vocabulary 0..22"),
        (Request(np.array([-1]), 4, 0), "id -1"),
        (Request(ONE, 4, 0, topk_logprobs=24), "topk_logprobs=24"),
        (Request(ONE, 4, 0, role="judge"), "role 'judge' has no model.*Roles: policy"),
    ):
        with pytest.raises(ValueError, match=says):
            engine.generate([Request(ONE, 1, 0), request])  # refused at the call, before any token is sampled
    with pytest.raises(ValueError, match="id 99"):
        engine.logprobs([ONE], [np.array([99])])
    with pytest.raises(ValueError, match="temperature=0"):
        engine.logprobs([ONE], [ONE], temperature=0)


def test_models_that_cannot_be_driven(make):
    with pytest.raises(ValueError, match="no prefill and decode"):
        engine_of(Critic(make()))
    with pytest.raises(ValueError, match="max_rows=0"):
        engine_of(make(), max_rows=0)
