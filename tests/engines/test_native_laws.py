"""Laws of the native engine: its log-probabilities are the trainer's; a draw depends on no other row."""

import asyncio

import numpy as np
import pytest
import torch

from gruppo.data import uniform
from gruppo.engines import NativeEngine, Request, complete, stream
from gruppo.policies import packed

GAP = {torch.float32: 1e-4, torch.float64: 1e-10}


def run(engine, requests):
    return asyncio.run(complete(engine, requests))


def engine_of(policy, **options):
    return NativeEngine({"policy": policy}, **options)


def trainer_logp(policy, request, completion):
    """Log-softmax of the packed forward, at the temperature, over the set that could be drawn."""
    sequence = np.concatenate([request.prefix, completion.ids])
    with torch.no_grad():
        hidden_MD, _ = policy(packed([sequence]))
        logits = policy.head(hidden_MD)[len(request.prefix) - 1 : -1] / (request.temperature or 1.0)
    if completion.allowed is not None:
        for row, ids in zip(logits, completion.allowed, strict=True):
            gone = torch.ones(len(row), dtype=torch.bool)
            gone[torch.from_numpy(ids)] = False
            row[gone] = float("-inf")
    return torch.log_softmax(logits, -1).gather(1, torch.from_numpy(completion.ids)[:, None])[:, 0].numpy()


def mixed(count, seed=0, **fixed):
    """Requests of many kinds: lengths, temperatures, truncations, stops."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, 23, n) for n in rng.integers(1, 20, max(count // 4, 1))]
    out = []
    for i in range(count):
        kind = {
            "temperature": float(rng.choice([0.0, 0.7, 1.0, 1.3])),
            "top_k": int(rng.choice([0, 0, 1, 3, 40])),
            "top_p": float(rng.choice([1.0, 1.0, 0.5, 0.9])),
            "stop": tuple(rng.integers(3, 23, rng.integers(0, 3)).tolist()),
        }
        prompt = prompts[int(rng.integers(len(prompts)))]
        out.append(Request(prompt, int(rng.integers(1, 30)), key=1000 + i, **(kind | fixed)))
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "how",
    [{"temperature": 0.7}, {"temperature": 1.0}, {"temperature": 1.3}, {"top_k": 3}, {"top_p": 0.7},
     {"temperature": 1.3, "top_k": 9, "top_p": 0.8}, {"temperature": 0.0}],
    ids=str,
)  # fmt: skip
def test_the_engines_logp_is_the_trainers(make, dtype, how):
    policy = make(dtype)
    plain = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    requests = mixed(40, **(plain | how))
    for request, c in zip(requests, run(engine_of(policy), requests), strict=True):
        assert np.abs(c.logp - trainer_logp(policy, request, c)).max() <= GAP[dtype]
        assert c.logp.dtype == (np.float64 if dtype == torch.float64 else np.float32)
        assert (c.allowed is None) == (not request.truncates)
        if request.temperature == 0:
            assert (c.logp == 0).all()


def test_settings_may_be_mixed_in_one_call(make):
    policy, requests = make(), mixed(120)
    for request, c in zip(requests, run(engine_of(policy, max_rows=17), requests), strict=True):
        assert np.abs(c.logp - trainer_logp(policy, request, c)).max() <= 1e-10


def same(a, b):
    assert a.ids.tolist() == b.ids.tolist()
    np.testing.assert_allclose(a.logp, b.logp, rtol=0, atol=1e-10)
    assert a.reason == b.reason
    assert (a.allowed is None) == (b.allowed is None)
    if a.allowed is not None and b.allowed is not None:
        assert [x.tolist() for x in a.allowed] == [x.tolist() for x in b.allowed]


@pytest.mark.parametrize("max_rows", [1024, 64, 7])
def test_draws_depend_on_no_other_row(make, max_rows):
    policy, requests = make(), mixed(100)
    together = run(engine_of(policy, max_rows=max_rows), requests)
    for i in range(0, 100, 11):
        same(together[i], run(engine_of(policy), [requests[i]])[0])
    backwards = run(engine_of(policy, max_rows=max_rows), requests[::-1])[::-1]
    for a, b in zip(together, backwards, strict=True):
        same(a, b)


def test_a_continuation_under_the_same_key_goes_on_with_the_stream(make):
    policy = make()
    whole = run(engine_of(policy, eos=None), [Request(np.array([1, 5]), 20, key=77)])[0]
    prefix = np.concatenate([[1, 5], whole.ids[:8]])
    rest = run(engine_of(policy, eos=None), [Request(prefix, 12, key=77)])[0]
    assert rest.ids.tolist() == whole.ids[8:].tolist()
    other = run(engine_of(policy, eos=None), [Request(prefix, 12, key=78)])[0]
    assert other.ids.tolist() != rest.ids.tolist()


def test_a_draw_is_the_inverse_of_the_cdf_at_the_keyed_uniform(make):
    policy, prefix = make(), np.array([1, 5, 9])
    with torch.no_grad():
        p_V = torch.softmax(policy.head(policy(packed([prefix]))[0])[-1], -1).numpy()
    for key in (0, -5, 2**63 - 1, 2**64 - 1, 12345678901234567890123):
        c = run(engine_of(policy), [Request(prefix, 1, key=key)])[0]
        assert c.ids[0] == np.searchsorted(np.cumsum(p_V), uniform(key, 3), side="right")


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.6, 0, 1.0), (1.0, 3, 1.0), (1.4, 4, 0.8)]
)
def test_frequencies_are_the_probabilities(make, temperature, top_k, top_p):
    """Chi-square of pairs of tokens, against the product of the two conditional distributions."""
    policy, n, vocab = make(vocab=5, seed=2), 4000, 5
    prefix = np.array([1, 3])
    requests = [Request(prefix, 2, i, temperature, top_k, top_p) for i in range(n)]
    done = run(engine_of(policy, eos=None), requests)
    counts, expected = np.zeros((vocab, vocab)), np.zeros((vocab, vocab))
    for c in done:
        counts[tuple(c.ids)] += 1
        expected[tuple(c.ids)] = n * np.exp(c.logp.sum())
    assert abs(expected.sum() / n - 1) < 1e-3  # every pair that can be drawn was: their probabilities add up
    seen = expected > 0
    chi2, freedom = ((counts - expected)[seen] ** 2 / expected[seen]).sum(), seen.sum() - 1
    assert chi2 < freedom + 4 * np.sqrt(2 * freedom)


def test_score_is_generates_logp(make):
    policy, requests = make(), mixed(60, temperature=0.7, top_k=0, top_p=1.0)
    engine = engine_of(policy, prefill_tokens=100)
    done = run(engine, requests)
    scored = engine.logprobs([r.prefix for r in requests], [c.ids for c in done], temperature=0.7)
    for c, logp in zip(done, scored, strict=True):
        np.testing.assert_allclose(c.logp, logp, rtol=0, atol=1e-10)
    assert [len(x) for x in engine.logprobs([np.array([1])] * 2, [np.zeros(0, np.int64), np.array([2])])] == [
        0,
        1,
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_engine_on_a_gpu(make):
    policy, requests = make().cuda(), mixed(120)
    host = make()
    for request, c in zip(requests, run(engine_of(policy, max_rows=17), requests), strict=True):
        assert np.abs(c.logp - trainer_logp(host, request, c)).max() <= 1e-10


@pytest.mark.parametrize("max_rows", [1024, 7])
def test_what_forks_have_in_common_is_computed_once(make, max_rows, monkeypatch):
    """The same draws and log-probabilities as from copies; the rows that went through the model are the nodes of the
    tree that the prefixes are."""
    rng = np.random.default_rng(3)
    paths = [rng.integers(0, 23, 40) for _ in range(3)]
    prefixes = [p[:at] for p in paths for at in (10, 14, 20, 31, 40)] + [np.append(paths[0][:20], [5, 6])]
    requests = [Request(p, 6, key=100 * i + n) for i, p in enumerate(prefixes) for n in range(3)]
    policy = make()
    engine = engine_of(policy, eos=None, max_rows=max_rows)
    shared = run(engine, requests)
    if max_rows == 1024:
        nodes = {tuple(p[: n + 1].tolist()) for p in prefixes for n in range(len(p))}
        assert engine.prefilled == len(nodes) == 3 * 40 + 2
    monkeypatch.setattr(stream, "FORKED", 2.0)
    copied = engine_of(policy, eos=None, max_rows=max_rows)
    for a, b in zip(shared, run(copied, requests), strict=True):
        assert a.ids.tolist() == b.ids.tolist() and np.allclose(a.logp, b.logp, atol=1e-12)
    assert copied.prefilled == sum(map(len, prefixes)) >= engine.prefilled
