"""Several callers that wait in between, each as long as it likes: the same bits in lockstep, the same draws without."""

import asyncio

import numpy as np
import pytest
import torch

from gruppo.engines import NativeEngine, Request


async def talk(engine, number, waits, turns=4):
    """A dialogue with an environment that takes its time; the number of turns is its own.

    Time is counted in turns of the event loop, of which the engine takes one a token: seconds would make the schedule
    that of the machine, and two schedules equal now and then.
    """
    rng, ids, out = np.random.default_rng(number), np.zeros(0, np.int64), []
    for turn in range(turns - number % 3):
        ids = np.concatenate([ids, rng.integers(3, 23, 3 + number % 4)])
        out.append(await engine.ask(Request(ids, 3 + (number + turn) % 5, key=100 * number + turn)))
        ids = np.concatenate([ids, out[-1].ids])
        for _ in range(waits.integers(0, 9)):
            await asyncio.sleep(0)
    return out


def talked(policy, seed, lockstep, **options):
    """What was drawn, and the shapes of all batches that were computed."""
    engine = NativeEngine({"policy": policy}, lockstep=lockstep, **options)
    waits, shapes = np.random.default_rng(seed), []
    hook = policy.model.embed_tokens.register_forward_hook(lambda _m, x, _y: shapes.append(len(x[0])))

    async def all_of_them():
        return await engine.together([talk(engine, i, waits) for i in range(9)])

    found = asyncio.run(asyncio.wait_for(all_of_them(), 60))
    hook.remove()
    return [c for dialogue in found for c in dialogue], shapes


@pytest.mark.parametrize("options", [{}, {"max_rows": 4}, {"cache_tokens": 60}], ids=str)
def test_lockstep_gives_the_same_bits(make, options):
    policy = make(torch.float32)
    first, shapes = talked(policy, 0, True, **options)
    for seed in (1, 2):
        again, others = talked(policy, seed, True, **options)
        assert others == shapes
        for a, b in zip(first, again, strict=True):
            assert a.ids.tolist() == b.ids.tolist() and a.logp.tolist() == b.logp.tolist()


def test_free_gives_the_same_draws(make):
    policy = make()  # float64: no draw is so close to a threshold
    first, shapes = talked(policy, 0, True)
    ran = []
    for seed in (1, 2):
        again, others = talked(policy, seed, False)
        ran.append(others)
        for a, b in zip(first, again, strict=True):
            assert a.ids.tolist() == b.ids.tolist()
            np.testing.assert_allclose(a.logp, b.logp, rtol=0, atol=1e-10)
    assert ran[0] != shapes and ran[0] != ran[1]  # the schedules are not the same, so the law says something


def test_callers_inside_a_caller(make):
    """While it waits for those inside, it is not waited for."""
    engine = NativeEngine({"policy": make()}, eos=None, lockstep=True)

    async def one(n):
        return len((await engine.ask(Request(np.array([1, n]), n, key=n))).ids)

    async def outer(n):
        first = await one(n)
        inside = await engine.together([one(n + 1), one(n + 2)])
        async with engine.caller():
            await asyncio.sleep(0.002)
            inside.append(await one(n + 3))
        return [first, *inside, await one(n)]

    async def all_of_them():
        return await engine.together([outer(1), outer(5), one(4)])

    found = asyncio.run(asyncio.wait_for(all_of_them(), 20))
    assert found == [[1, 2, 3, 4, 1], [5, 6, 7, 8, 5], 4]
    assert not engine.waves._active and not engine.waves._held and engine.waves._root.inside == 0


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_caller_that_fails_ends_the_others(make, lockstep):
    engine = NativeEngine({"policy": make()}, eos=None, lockstep=lockstep)

    async def fails():
        await engine.ask(Request(np.array([1]), 2, key=0))
        raise ValueError("the environment broke")

    async def waits():
        while True:
            await engine.ask(Request(np.array([1, 2]), 5, key=1))

    async def all_of_them():
        await engine.together([waits(), fails(), waits()])

    with pytest.raises(ValueError, match="the environment broke"):
        asyncio.run(asyncio.wait_for(all_of_them(), 20))
    assert not engine.waves._active and not engine.waves._held
    assert len(asyncio.run(engine.ask(Request(np.array([1]), 2, key=0))).ids) == 2


def test_a_caller_that_is_cancelled_holds_up_nobody(make):
    engine = NativeEngine({"policy": make()}, eos=None, lockstep=True)

    async def never():
        async with engine.caller():
            await asyncio.sleep(1000)

    async def some():
        sleeper = asyncio.create_task(never())
        await asyncio.sleep(0)
        async with engine.caller():
            mine = asyncio.create_task(engine.ask(Request(np.array([1]), 3, key=0)))  # of this caller: it inherits it
            await asyncio.sleep(0.01)
            assert not mine.done()  # the other one might still ask
            sleeper.cancel()
            return await mine

    assert len(asyncio.run(asyncio.wait_for(some(), 20)).ids) == 3


def test_calls_of_nobody_in_particular_are_not_held(make):
    engine = NativeEngine({"policy": make()}, eos=None, lockstep=True)

    async def some():
        asked = asyncio.Event()
        thinking = asyncio.create_task(engine.together([asked.wait()]))
        await asyncio.sleep(0)
        await engine.ask(Request(np.array([1]), 3, key=0))
        asked.set()
        await thinking

    asyncio.run(asyncio.wait_for(some(), 20))


def test_callers_of_a_loop_that_was_closed_are_gone(make):
    engine, ask = NativeEngine({"policy": make()}, eos=None, lockstep=True), Request(np.array([1]), 3, key=0)
    loop = asyncio.new_event_loop()

    async def enters():
        engine.waves.enter()  # and never leaves

    loop.run_until_complete(enters())
    loop.close()
    found = asyncio.run(asyncio.wait_for(engine.together([engine.ask(ask), engine.ask(ask)]), 20))
    assert [len(c.ids) for c in found] == [3, 3]


def test_a_task_may_be_a_caller_of_two_engines(make):
    one, two = (NativeEngine({"policy": make()}, eos=None, lockstep=True) for _ in range(2))

    async def some(key):
        async with two.caller():
            for turn in range(3):
                await asyncio.sleep(0.001 * key)
                await one.ask(Request(np.array([1, 5]), 2, key=key + turn))
                await two.ask(Request(np.array([1, 6]), 2, key=key + turn))

    async def others(key):
        for turn in range(3):
            await one.ask(Request(np.array([1, 5]), 2, key=10 + key + turn))

    async def all_of_them():
        await one.together([some(1), some(2), others(3)])

    asyncio.run(asyncio.wait_for(all_of_them(), 20))
    assert not one.waves._active and not two.waves._active


def test_lockstep_is_the_default_on_a_cpu(make):
    assert NativeEngine({"policy": make()}).waves.lockstep
    assert not NativeEngine({"policy": make()}, lockstep=False).waves.lockstep
