"""One running batch for all callers, with memory: the same draws, and nothing computed twice."""

import asyncio

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_native_laws import mixed, same, trainer_logp

from gruppo.data.prefix import prefix_nodes
from gruppo.engines import NativeEngine, Request, complete
from gruppo.engines.parked import Parked
from gruppo.policies import packed
from gruppo.policies.layout import Past


def engine_of(policy, **options):
    return NativeEngine({"policy": policy}, **options)


async def asked(engine, requests):
    return await asyncio.gather(*(engine.ask(r) for r in requests))


def generated(engine, requests):
    return asyncio.run(complete(engine, requests))


# ---- laws of draws and log-probabilities, for many callers


@pytest.mark.parametrize(
    ("max_rows", "cache_tokens"), [(1024, 65536), (1024, 0), (7, 65536), (7, 120), (1, 90)], ids=str
)
def test_callers_draw_what_one_call_draws(make, max_rows, cache_tokens):
    """Twice, so that the second time much is parked, or was evicted."""
    policy, requests = make(), mixed(30)
    want = generated(engine_of(policy), requests)
    engine = engine_of(policy, max_rows=max_rows, cache_tokens=cache_tokens)
    for _ in range(2):
        for request, a, b in zip(requests, asyncio.run(asked(engine, requests)), want, strict=True):
            same(a, b)
            assert np.abs(a.logp - trainer_logp(policy, request, a)).max() <= 1e-10
    assert engine.parked.tokens <= cache_tokens
    assert bool(len(engine.parked)) == bool(cache_tokens)


def test_requests_join_while_others_run(make):
    policy, requests = make(), mixed(60)
    want = generated(engine_of(policy), requests)
    rng = np.random.default_rng(0)

    async def late(engine, request, ticks):
        for _ in range(ticks):
            await asyncio.sleep(0)
        return await engine.ask(request)

    async def all_of_them():
        engine = engine_of(policy, max_rows=9)
        ticks = rng.integers(0, 60, len(requests)).tolist()
        return await asyncio.gather(*(late(engine, r, t) for r, t in zip(requests, ticks, strict=True)))

    for a, b in zip(asyncio.run(all_of_them()), want, strict=True):
        same(a, b)


def test_a_caller_that_truncates_changes_no_bit_of_another(make):
    """In float32, in one batch of the same shape: what the others draw from is not normalised again."""
    policy = make(torch.float32)
    plain = Request(np.array([1, 5, 9]), 12, key=3)
    other = {"prefix": np.array([2, 4, 8]), "max_tokens": 12, "key": 4}

    def drawn(**how):
        return asyncio.run(asked(engine_of(policy, eos=None), [plain, Request(**other, **how)]))[0]

    first, second = drawn(), drawn(top_k=23, top_p=0.999999)
    assert first.logp.tolist() == second.logp.tolist()


def test_roles_run_side_by_side(make):
    policy, teacher = make(), make(seed=9)
    engine = NativeEngine({"policy": policy, "teacher": teacher}, eos=None)
    requests = [Request(np.array([1, 4]), 9, key=i, role=role) for i in range(4) for role in ("policy", "teacher")]
    order = []
    policy.model.embed_tokens.register_forward_hook(lambda *_: order.append("policy"))
    teacher.model.embed_tokens.register_forward_hook(lambda *_: order.append("teacher"))
    found = asyncio.run(asked(engine, requests))
    assert order == ["policy", "teacher"] * 9  # nine tokens each, in turns
    alone = {r: NativeEngine({r: m}, eos=None) for r, m in engine.models.items()}
    for request, a in zip(requests, found, strict=True):
        same(a, generated(alone[request.role], [request])[0])
    assert len(engine.parked) == 8  # equal ids of two roles are two rows


# ---- what is computed


async def talk(engine, number, turns=5, seen=6, said=4):
    rng, ids, out = np.random.default_rng(number), np.zeros(0, np.int64), []
    for turn in range(turns):
        ids = np.concatenate([ids, [number], rng.integers(3, 23, seen - 1)])  # no two dialogues begin alike
        request = Request(ids, said, key=100 * number + turn)
        out.append((request, await engine.ask(request)))
        ids = np.concatenate([ids, out[-1][1].ids])
    return out


@pytest.mark.parametrize("max_rows", [1024, 5])
def test_every_token_of_a_dialogue_is_computed_once(make, max_rows):
    policy = make()
    engine = engine_of(policy, eos=None, max_rows=max_rows)

    async def all_of_them():
        return await asyncio.gather(*(talk(engine, i) for i in range(12)))

    for dialogue in asyncio.run(all_of_them()):
        for request, c in dialogue[-2:]:
            same(c, generated(engine_of(policy, eos=None), [request])[0])
    assert engine.prefilled + engine.decoded == 12 * (5 * (6 + 4) - 1)  # nothing follows the last token
    assert len(engine.parked) == 12  # a turn takes the place of the turn before
    assert engine.parked.tokens == 12 * (5 * 10 - 1)


def test_forks_share_a_parked_row(make):
    policy, prompt = make(), np.arange(3, 15)
    engine = engine_of(policy, eos=None)

    async def forked():
        first = await engine.ask(Request(prompt, 8, key=1))
        count = [engine.prefilled]
        again = await asked(engine, [Request(prompt, 8, key=k) for k in (2, 3)])  # the same prompt
        count.append(engine.prefilled)
        middle = np.concatenate([prompt, first.ids[:5]])
        forks = [Request(middle, 8, key=k) for k in (4, 5)] + [Request(np.append(middle, [7, 8]), 8, key=6)]
        tails = await asked(engine, forks)
        count.append(engine.prefilled)
        return again + tails, forks, count

    found, forks, count = asyncio.run(forked())
    assert np.diff(count).tolist() == [0, 2]  # what two of them add to the fork, and nothing before
    for request, c in zip([Request(prompt, 8, key=k) for k in (2, 3)] + forks, found, strict=True):
        same(c, generated(engine_of(policy, eos=None), [request])[0])


def test_generate_remembers_only_if_told(make):
    engine, request = engine_of(make(), eos=None), Request(np.arange(3, 12), 4, key=0)
    generated(engine, [request])
    assert len(engine.parked) == 0

    async def remembering():
        return [c async for c in engine.generate([request, request], remember=True)]

    asyncio.run(remembering())
    assert (len(engine.parked), engine.prefilled) == (1, 18)
    asyncio.run(remembering())
    assert engine.prefilled == 18
    generated(engine, [request])
    assert engine.prefilled == 27


def test_payloads_are_part_of_a_prefix(make):
    engine, ids = engine_of(make(), eos=None), np.arange(3, 12)

    def ask(*payloads):
        before = engine.prefilled
        asyncio.run(asked(engine, [Request(ids, 4, key=0, payload=p) for p in payloads]))
        return engine.prefilled - before

    assert ask(b"cat", b"dog", b"dog") == 18  # in one admission: two prefixes
    assert ask(b"cat", b"", b"dog") == 9
    assert ask(b"ca", b"tx") == 18


def test_payloads_are_part_of_a_shared_prefix_of_a_batch():
    ids, length = np.tile(np.arange(5), 4), np.full(4, 5)
    assert len(set(prefix_nodes(ids, length).tolist())) == 5
    node = prefix_nodes(ids, length, payloads=[b"a", b"b", b"a", b""]).reshape(4, 5)
    assert len(set(node.ravel().tolist())) == 15
    assert node[0].tolist() == node[2].tolist()
    assert prefix_nodes(ids, length, payloads=[b"a", b"b", b"c", b""]) is None


@pytest.mark.parametrize("version", [1, 0])  # 0: nobody told the engine, as inside an update that samples
def test_other_weights_and_forget_drop_what_is_parked(make, version):
    policy, request = make(), Request(np.arange(3, 12), 6, key=1)
    engine = engine_of(policy, eos=None)
    asyncio.run(engine.ask(request))
    with torch.no_grad():
        for p in policy.parameters():
            p.mul_(0.5)
    engine.version += version
    after = asyncio.run(engine.ask(request))
    same(after, generated(engine_of(policy, eos=None), [request])[0])
    assert (engine.prefilled, len(engine.parked)) == (18, 1)
    engine.forget()
    assert (len(engine.parked), engine.parked.tokens) == (0, 0)
    asyncio.run(engine.ask(request))
    assert engine.prefilled == 27


def test_an_update_that_samples_is_without_memory(make):
    """Changed as a fused optimiser does it: PyTorch does not count it."""
    policy, request = make(), Request(np.arange(3, 12), 6, key=1)
    engine = engine_of(policy, eos=None)
    asyncio.run(engine.ask(request))
    optimiser = torch.optim.AdamW(policy.parameters(), lr=0.1, fused=True)
    with engine.without_memory():
        for _ in range(2):
            policy(packed([np.arange(9)]))[0].square().sum().backward()
            optimiser.step()
            found = asyncio.run(engine.ask(request))
            same(found, generated(engine_of(policy, eos=None), [request])[0])
    assert len(engine.parked) == 0 and engine.parked.budget == 65536


# ---- callers that go away, and updates


async def pull(stream):
    return await anext(stream)


def test_a_caller_that_goes_away_frees_its_rows(make):
    policy = make()
    engine = engine_of(policy, eos=None)
    stay, gone = Request(np.array([1, 4]), 20, key=1), [Request(np.array([1, 5]), 40, key=k) for k in range(6)]

    async def leave():
        tasks = [asyncio.create_task(engine.ask(r)) for r in gone[:3]]
        stream = engine.generate(gone[3:])
        pulled = asyncio.create_task(pull(stream))
        mine = asyncio.create_task(engine.ask(stay))
        for _ in range(5):
            await asyncio.sleep(0)
        for task in (*tasks, pulled):
            task.cancel()
        found = await asyncio.gather(*tasks, pulled, return_exceptions=True)
        assert [type(f) for f in found] == [asyncio.CancelledError] * 4
        before = engine.decoded
        return await mine, before

    found, before = asyncio.run(leave())
    same(found, generated(engine_of(policy, eos=None), [stay])[0])
    assert engine.decoded - before <= 20  # only the row that stayed
    assert len(engine.parked) == 1
    assert not engine._drivers and not engine._streams["policy"].busy


def test_those_that_wait_for_the_same_prefix_may_go_away(make):
    """A prefix is kept for the next in the queue, who leaves."""
    policy, ids = make(), [np.array([1, 4]), np.array([1, 5])]
    engine = engine_of(policy, eos=None, max_rows=1)

    async def leave():
        first = asyncio.create_task(engine.ask(Request(ids[0], 3, key=0)))
        second = asyncio.create_task(engine.ask(Request(ids[0], 3, key=1)))
        third = asyncio.create_task(engine.ask(Request(ids[1], 3, key=2)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second.cancel()
        return await first, await third

    for n, (found, key) in enumerate(zip(asyncio.run(leave()), (0, 2), strict=True)):
        same(found, generated(engine_of(policy, eos=None), [Request(ids[n], 3, key=key)])[0])


def test_a_stream_that_is_closed_frees_its_rows(make):
    engine = engine_of(make(), eos=None)

    async def first():
        stream = engine.generate([Request(np.array([1]), n, key=n) for n in (2, 60)])
        i, _ = await anext(stream)
        await stream.aclose()
        for _ in range(3):
            await asyncio.sleep(0)
        return i

    assert asyncio.run(first()) == 0
    assert engine.decoded <= 4 and not engine._drivers


def test_an_event_loop_that_is_left_behind_is_no_harm(make):
    """A loop is closed while rows are in flight; the next one starts anew."""
    engine, request = engine_of(make(), eos=None), Request(np.array([1, 4]), 30, key=1)
    loop = asyncio.new_event_loop()
    task = loop.create_task(engine.ask(request))
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))
    assert not task.done()
    found = asyncio.run(asyncio.wait_for(engine.ask(request), 20))
    assert len(found.ids) == 30
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()


def test_an_update_while_anyone_waits_is_an_error_for_all(make):
    engine = engine_of(make(), eos=None)

    async def update():
        tasks = [asyncio.create_task(engine.ask(Request(np.array([1, k]), 30, key=k))) for k in range(3)]
        for _ in range(4):
            await asyncio.sleep(0)
        engine.version += 1
        return await asyncio.gather(*tasks, return_exceptions=True)

    for error in asyncio.run(update()):
        assert isinstance(error, RuntimeError) and "version went from 0 to 1" in str(error)
    assert len(asyncio.run(engine.ask(Request(np.array([1]), 3, key=0))).ids) == 3  # and it goes on


def test_a_budget_that_no_request_fits_into(make):
    engine, request = engine_of(make(), cache_tokens=20), Request(np.arange(3, 15), 9, key=0)
    says = r"cache_tokens=20: a request of 12 \+ 9 tokens.*cache_tokens=21 or more, max_tokens of at most 8"
    with pytest.raises(ValueError, match=says):
        asyncio.run(engine.ask(request))
    with pytest.raises(ValueError, match=r"of 20 \+ 1 tokens.*cache_tokens=21 or more, or cache_tokens=0"):
        asyncio.run(engine.ask(Request(np.arange(20), 1, key=0)))  # whatever max_tokens is
    assert len(generated(engine, [request])) == 1  # which keeps nothing
    assert len(asyncio.run(engine.ask(Request(np.arange(3, 15), 8, key=0))).ids) <= 8
    assert len(asyncio.run(engine_of(make(), cache_tokens=0).ask(request)).ids) <= 9


# ---- the parts


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_longest_common_prefix_is_found(data):
    """Against a scan of all that is parked; ids from a small alphabet, so that much is shared."""
    words = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(np.array)
    parked = Parked(40)
    for ids in data.draw(st.lists(words, max_size=25)):
        parked.put(("policy", b""), ids, lambda: torch.zeros(1, 2, 1, 1), {})
        held = [e.ids for e in parked._entries.values()]
        assert parked.tokens == sum(map(len, held)) <= 40
        assert any(h[: len(ids)].tolist() == ids.tolist() for h in held)  # the last one is always there
        for a in held:  # none is the beginning of another
            assert not any(a is not b and b[: len(a)].tolist() == a.tolist() for b in held)
    ids = data.draw(words)
    want = max((len(shared(h, ids)) for h in (e.ids for e in parked._entries.values())), default=0)
    found = parked.find(("policy", b""), ids)
    assert (found[1] if found else 0) == want
    assert parked.find(("teacher", b""), ids) is None


def shared(a, b):
    out = []
    for x, y in zip(a.tolist(), b.tolist(), strict=False):
        if x != y:
            break
        out.append(x)
    return out


def test_what_was_used_last_is_kept():
    parked = Parked(10)
    kv = {n: torch.zeros(1, 2, n, 1) for n in (4, 5, 11)}
    shelf = ("policy", b"")
    parked.put(shelf, np.full(4, 1), lambda: kv[4], {})
    parked.put(shelf, np.full(4, 2), lambda: kv[4], {})
    assert parked.find(shelf, np.full(3, 1)) is not None
    parked.put(shelf, np.full(5, 3), lambda: kv[5], {})
    assert parked.find(shelf, np.full(3, 2)) is None and parked.find(shelf, np.full(3, 1)) is not None
    parked.put(shelf, np.full(11, 4), lambda: kv[11], {})  # it would not fit
    assert len(parked) == 2


@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_tokens_after_a_past_are_those_of_the_whole_sequence(make, kv_heads, seed):
    policy, rng = make(kv_heads=kv_heads), np.random.default_rng(seed)
    sequences = [rng.integers(0, 23, n) for n in rng.integers(1, 60, 9)]
    known = np.array([rng.integers(0, len(s)) for s in sequences])
    start = np.cumsum([0, *(len(s) for s in sequences[:-1])])
    with torch.no_grad():
        hidden_MD, kv_M = policy.prefill(packed(sequences))
        rest = packed([s[n:] for s, n in zip(sequences, known, strict=True)], after=known)
        later_MD, kv_new = policy.extend(rest, Past(kv_M, start, known))
    at = np.concatenate([np.arange(a + n, a + len(s)) for a, n, s in zip(start, known, sequences, strict=True)])
    torch.testing.assert_close(later_MD, hidden_MD[at], rtol=0, atol=1e-12)
    torch.testing.assert_close(kv_new, kv_M[:, :, at], rtol=0, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_callers_on_a_gpu(make):
    policy, host, requests = make().cuda(), make(), mixed(60)
    engine = engine_of(policy, max_rows=17)
    assert not engine.waves.lockstep
    for _ in range(2):  # the second time from parked rows
        for request, c in zip(requests, asyncio.run(asked(engine, requests)), strict=True):
            assert np.abs(c.logp - trainer_logp(host, request, c)).max() <= 1e-10
