"""Steering and texts that end an answer."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_native_laws import mixed, same, trainer_logp

from gruppo.data import uniform
from gruppo.engines import NativeEngine, Request, complete
from gruppo.engines.steer import Move
from gruppo.policies import packed

LETTERS = "??#" + "abcdefghijklmnopqrst"  # of ids 3 to 22; 0 to 2 say nothing


def decode(ids):
    return "".join(LETTERS[i] for i in ids if i > 2)


def engine_of(policy, **options):
    return NativeEngine({"policy": policy}, decode=decode, **options)


def drawn(engine, requests, ask=False):
    async def asked():
        return await asyncio.gather(*(engine.ask(r) for r in requests))

    return asyncio.run(asked() if ask else complete(engine, requests))


def ended(c):
    """Without what only steering leaves."""
    return c.forced is None and c.forks == () and c.start == 0


# ---- laws


@pytest.mark.parametrize("neutral", [lambda *_: None, lambda *_: Move()], ids=["none", "empty"])
@pytest.mark.parametrize("ask", [False, True])
def test_neutral_steering_is_plain_sampling_bit_for_bit(make, neutral, ask):
    policy, requests = make(torch.float32), mixed(40)
    want = drawn(engine_of(policy, max_rows=9), requests, ask)
    found = drawn(engine_of(policy, max_rows=9), [replace(r, steer=neutral) for r in requests], ask)
    for a, b in zip(found, want, strict=True):
        assert a.ids.tolist() == b.ids.tolist() and a.logp.tolist() == b.logp.tolist()
        assert (a.reason, a.allowed is None, ended(a)) == (b.reason, b.allowed is None, True)
        if a.allowed is not None:
            assert [x.tolist() for x in a.allowed] == [x.tolist() for x in b.allowed]


def test_steering_one_row_changes_no_bit_of_another(make):
    policy = make(torch.float32)
    plain, other = (Request(np.array([1, k]), 10, key=k) for k in (4, 5))
    want = drawn(engine_of(policy, eos=None), [plain, other])[0]
    busy = replace(other, steer=lambda ids, pos, z: Move(allow=np.array([3, 4, 5]), add=z * 0.5))
    found = drawn(engine_of(policy, eos=None), [plain, busy])[0]
    assert found.logp.tolist() == want.logp.tolist() and found.allowed is None


def even(ids, position, logits):
    return Move(allow=np.arange(0, 23, 2)) if position % 2 else None


@pytest.mark.parametrize("how", [{}, {"temperature": 0.7}, {"top_k": 4}, {"top_p": 0.6}, {"temperature": 0.0}], ids=str)
def test_logp_is_that_of_the_restricted_distribution(make, how):
    policy = make()
    requests = [Request(np.array([1, k]), 12, key=k, steer=even, **how) for k in range(12)]
    for request, c in zip(requests, drawn(engine_of(policy, eos=None), requests), strict=True):
        assert c.allowed is not None and c.forced is None
        for t, (token, allowed) in enumerate(zip(c.ids, c.allowed, strict=True)):
            assert token in allowed
            if (2 + t) % 2:
                assert not (allowed % 2).any()
        assert np.abs(c.logp - trainer_logp(policy, request, c)).max() <= 1e-10


def test_a_draw_is_the_inverse_of_the_cdf_of_what_was_added(make):
    policy, prefix = make(), np.array([1, 5, 9])
    bonus = np.linspace(-3, 3, 23)
    request = Request(prefix, 1, key=12, temperature=1.3, steer=lambda ids, pos, z: Move(add=bonus))
    with torch.no_grad():
        z = policy.head(policy(packed([prefix]))[0])[-1].numpy()
    p = np.exp((z + bonus) / 1.3)
    [c] = drawn(engine_of(policy), [request])
    assert c.ids[0] == np.searchsorted(np.cumsum(p / p.sum()), uniform(12, 3), side="right")
    np.testing.assert_allclose(c.logp, np.log(p / p.sum())[c.ids], atol=1e-12)


def test_what_a_steer_is_shown(make):
    """All ids so far, the position of the next, and the logits of the policy."""
    policy, seen = make(), []
    steer = lambda ids, pos, z: seen.append((ids.copy(), pos, z.copy()))  # noqa: E731
    [c] = drawn(engine_of(policy, eos=None), [Request(np.array([1, 5]), 4, key=0, steer=steer)])
    whole = np.concatenate([[1, 5], c.ids])
    with torch.no_grad():
        logits = policy.head(policy(packed([whole]))[0]).numpy()
    for t, (ids, pos, z) in enumerate(seen):
        assert ids.tolist() == whole[: 2 + t].tolist() and pos == 2 + t
        np.testing.assert_allclose(z, logits[1 + t], atol=1e-10)


def test_a_forced_token_is_marked_and_has_the_logp_of_the_policy(make):
    policy = make()

    def think(ids, position, logits):
        return Move(force=7) if position in (3, 5) else None

    requests = [Request(np.array([1, k]), 8, key=k, temperature=0.7, steer=think) for k in range(5)]
    requests.append(replace(requests[0], top_k=2))
    for request, c in zip(requests, drawn(engine_of(policy, eos=None), requests), strict=True):
        assert c.forced is not None and c.forced.tolist() == [False, True, False, True] + [False] * 4
        assert c.ids[[1, 3]].tolist() == [7, 7]
        assert (c.allowed is None) == (request.top_k == 0)
        assert np.abs(c.logp - trainer_logp(policy, request, c)).max() <= 1e-10


@pytest.mark.parametrize("cache_tokens", [65536, 0])
@pytest.mark.parametrize("max_rows", [1024, 2])
def test_forks_go_on_under_keys_of_their_own(make, cache_tokens, max_rows):
    policy, prefix = make(), np.arange(3, 10)

    def twice(ids, position, logits):
        return Move(fork=2) if position == 9 else None

    engine = engine_of(policy, eos=None, cache_tokens=cache_tokens, max_rows=max_rows)
    request = Request(prefix, 6, key=5, steer=twice)
    [c] = drawn(engine, [request])
    same(c, drawn(engine_of(policy, eos=None), [replace(request, steer=None)])[0])  # the row itself is as ever
    assert [f.start for f in c.forks] == [2, 2]
    for f in c.forks:
        assert len(f.ids) == 4 and f.forks == ()
        whole = replace(request, prefix=np.concatenate([prefix, c.ids[:2]]))
        assert np.abs(f.logp - trainer_logp(policy, whole, f)).max() <= 1e-10
    assert len({tuple(x.ids.tolist()) for x in (*c.forks, replace(c, ids=c.ids[2:]))}) == 3
    computed = len(prefix) + 5 + 2 * 3  # nothing before a fork is computed again
    assert engine.prefilled + engine.decoded == computed
    assert engine.sampled == 6 + 4 + 4
    assert len(engine.parked) == 0  # `generate` keeps nothing


def test_forks_of_forks(make):
    def binary(ids, position, logits):
        return Move(fork=1) if position in (3, 4) else None

    engine = engine_of(make(), eos=None)
    [c] = drawn(engine, [Request(np.array([1, 5]), 4, key=1, steer=binary)], ask=True)
    assert [(f.start, len(f.ids), len(f.forks)) for f in c.forks] == [(1, 3, 1), (2, 2, 0)]
    [inner] = c.forks[0].forks
    assert (inner.start, len(inner.ids)) == (1, 2)
    assert engine.prefilled + engine.decoded == 2 + 3 + 2 + 1 + 1


def test_a_row_that_is_dropped(make):
    def short(ids, position, logits):
        return Move(drop=True) if position == 2 + ids[1] - 3 else None

    policy = make()
    requests = [Request(np.array([1, 3 + k]), 6, key=k, steer=short) for k in range(4)]
    found = drawn(engine_of(policy, eos=None), requests, ask=True)
    assert [(len(c.ids), c.reason) for c in found] == [(k, "drop") for k in range(4)]
    plain = drawn(engine_of(policy, eos=None), [replace(r, steer=None) for r in requests])
    for a, b in zip(found, plain, strict=True):
        assert a.ids.tolist() == b.ids[: len(a.ids)].tolist() and len(a.logp) == len(a.ids)


def test_memory_that_runs_out_does_not_fork_twice(make, monkeypatch):
    policy, failed = make(), []
    whole = policy.decode

    def once(ids, *rest):
        if len(ids) == 6 and not failed:
            failed.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(ids, *rest)

    def fork(ids, position, logits):
        return Move(fork=1) if position == 3 else None

    requests = [Request(np.array([1, 3 + k]), 6, key=k, steer=fork) for k in range(3)]
    want = drawn(engine_of(policy, eos=None), requests)
    monkeypatch.setattr(policy, "decode", once)
    found = drawn(engine_of(policy, eos=None, say=lambda _: None), requests)
    assert failed
    for a, b in zip(found, want, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert [f.ids.tolist() for f in a.forks] == [f.ids.tolist() for f in b.forks]


@pytest.mark.parametrize(
    ("move", "says"),
    [
        (Move(allow=np.array([23])), "id 23 is outside the vocabulary 0..22"),
        (Move(allow=np.zeros(0, np.int64)), "allow is empty"),
        (Move(add=np.zeros(5)), r"add has the shape \(5,\).*each of 23 ids"),
        (Move(force=-1), "id -1"),
        (Move(fork=-2), "fork=-2"),
        (Move(fork=9), "has forked 9 times, and the engine has 8 rows.*engine.rows"),
    ],
    ids=str,
)
def test_moves_that_make_no_sense(make, move, says):
    engine = engine_of(make(), max_rows=8)
    with pytest.raises(ValueError, match=says):
        drawn(engine, [Request(np.array([1]), 4, key=0, steer=lambda *_: move)])
    assert len(drawn(engine, [Request(np.array([1]), 1, key=0)])[0].ids) == 1  # and it goes on


def test_a_steer_that_fails_ends_its_own_call_alone(make):
    policy = make()
    engine = engine_of(policy, eos=None)

    def breaks(ids, position, logits):
        if position == 5:
            raise KeyError("a bug of the user")
        return Move(fork=1) if position == 3 else None

    plain = Request(np.array([1, 4]), 12, key=1)

    async def both():
        bad = Request(np.array([1, 5]), 12, key=2, steer=breaks)
        return await asyncio.gather(engine.ask(plain), engine.ask(bad), engine.ask(bad), return_exceptions=True)

    good, *bad = asyncio.run(both())
    same(good, drawn(engine_of(policy, eos=None), [plain])[0])
    assert [repr(b) for b in bad] == ["KeyError('a bug of the user')"] * 2
    assert not engine._drivers and not engine._streams["policy"].busy


# ---- texts


@pytest.mark.parametrize("ask", [False, True])
def test_a_text_ends_an_answer_with_the_token_in_which_it_ends(make, ask):
    policy = make()
    requests = [Request(np.array([1, 5]), 40, key=k) for k in range(12)]
    free = drawn(engine_of(policy, eos=None), requests)
    for length in (1, 2, 3):
        for request, c in zip(requests, free, strict=True):
            text = decode(c.ids)
            stop = (text[12 : 12 + length], "never there")
            n = next(n for n in range(len(c.ids) + 1) if any(s in decode(c.ids[:n]) for s in stop))
            [cut] = drawn(engine_of(policy, eos=None), [replace(request, stop_text=stop)], ask)
            assert (cut.ids.tolist(), cut.reason) == (c.ids[:n].tolist(), "stop")
    assert {c.reason for c in free} == {"length"}


def test_a_text_may_begin_many_tokens_before_and_end_inside_a_token():
    from gruppo.engines.texts import ends_in

    words = ["", "th", "e e", "nd of", " it", "\n\nmore"]
    say = lambda ids: "".join(words[i] for i in ids)  # noqa: E731
    ids = np.array([1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4])
    for n in range(1, len(ids) + 1):
        assert ends_in(say, ids[:n], ("end of it",)) == (n == len(ids))
    assert ends_in(say, np.array([4, 5]), ("\n", "x"))


def test_only_rows_that_ask_are_decoded(make):
    said = []
    engine = NativeEngine({"policy": make()}, eos=None, decode=lambda ids: said.append(1) or decode(ids))
    plain = [Request(np.array([1, k]), 9, key=k) for k in range(5)]
    drawn(engine, plain)
    assert not said
    drawn(engine, [*plain, Request(np.array([1]), 9, key=9, stop_text=("@",))])
    assert len(said) == 9


def test_texts_that_no_token_can_end(make):
    with pytest.raises(ValueError, match=r"stop_text=\('x', ''\): no token can end an empty text"):
        Request(np.array([1]), 4, 0, stop_text=("x", ""))
    with pytest.raises(ValueError, match="a single text is no tuple"):
        Request(np.array([1]), 4, 0, stop_text="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no decoder"):
        NativeEngine({"policy": make()}).generate([Request(np.array([1]), 4, 0, stop_text=("x",))])
