"""Everything at once: callers that come, go on, fork, are steered and go away, in few rows and a small memory."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from test_native_laws import same

from gruppo.engines import NativeEngine, Request, complete
from gruppo.engines.steer import Move


def bent(ids, position, logits):
    """Restricts, forces, adds and forks, by what is there."""
    turn = int(ids[-1]) % 5
    if turn == 0:
        return Move(allow=np.arange(1, 23, 2))
    if turn == 1:
        return Move(force=int(ids[0]) % 23)
    if turn in (2, 3):
        return Move(add=np.linspace(0, 2, 23), fork=int(position % 5 == 1))
    return None


def plan(seed, count=24):
    """For every caller: its role, its settings, and whether it goes away in the middle of its last turn."""
    rng = np.random.default_rng(seed)
    stems = [rng.integers(3, 23, 9) for _ in range(3)]
    out = []
    for i in range(count):
        how = {"temperature": float(rng.choice([0.0, 0.7, 1.0])), "top_k": int(rng.choice([0, 0, 3]))}
        how |= {"role": str(rng.choice(["policy", "teacher"])), "payload": [b"", b"", b"cat"][int(rng.integers(3))]}
        how |= {"stop_text": ("c",) if rng.random() < 0.3 else (), "steer": bent if rng.random() < 0.3 else None}
        start = stems[int(rng.integers(3))][: int(rng.integers(2, 10))]
        out.append((i, start, how, rng.random() < 0.25, int(rng.integers(1, 4))))
    return out


async def play(engine, caller, chance):
    number, ids, how, leaves, turns = caller
    rng, out = np.random.default_rng(number), []
    for turn in range(turns):
        request = Request(ids, int(rng.integers(1, 9)), key=100 * number + turn, **how)
        work = asyncio.create_task(engine.ask(request))
        for _ in range(int(chance.integers(0, 4))):
            await asyncio.sleep(0)
        if leaves and turn == turns - 1 and not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            break
        done = await work
        out.append((request, done))
        ids = np.concatenate([ids, done.ids, rng.integers(3, 23, 2)])
        if chance.random() < 0.03:
            engine.forget()
        await asyncio.sleep(float(chance.choice([0, 0, 0.001])))
    return out


def tree(a, b):
    same(a, b)
    assert (a.forced is None) == (b.forced is None) and a.start == b.start and len(a.forks) == len(b.forks)
    if a.forced is not None:
        assert a.forced.tolist() == b.forced.tolist()
    for x, y in zip(a.forks, b.forks, strict=True):
        tree(x, y)


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_storm_of_callers_draws_what_each_alone_draws(make, lockstep, seed):
    models = {"policy": make(context=96), "teacher": make(seed=9, context=96)}
    say = lambda ids: "".join(chr(97 + i) for i in ids)  # noqa: E731
    engine = NativeEngine(models, max_rows=6, cache_tokens=200, lockstep=lockstep, decode=say)
    chance = np.random.default_rng(100 + seed)

    async def storm():
        return await engine.together([play(engine, caller, chance) for caller in plan(seed)])

    found = [pair for some in asyncio.run(asyncio.wait_for(storm(), 60)) for pair in some]
    assert len(found) > 20 and any(c.forks for _, c in found) and any(c.forced is not None for _, c in found)
    alone = NativeEngine(models, cache_tokens=0, decode=say)
    for request, c in found:
        tree(c, asyncio.run(complete(alone, [replace(request, payload=b"")]))[0])
    assert engine.parked.tokens <= 200 and not engine._drivers
    assert not any(s.busy for s in engine._streams.values()) and not engine.waves._active
