"""Pitfall 22: "stale KV/prefix/encoder cache after weight update". Rule: "version-salted cache or reset".

If the bug came back, answers after an update would be sampled from keys and values of the old weights: the
log-probability that the sampler reports would not be that of the new weights, and the sampler gap would show it.
"""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import drawn, in_world, running, take_step

from gruppo.engines import NativeEngine, Request, complete
from gruppo.engines.stream import Stream
from gruppo.policies import TinyTransformer, load_policy


def requests() -> list[Request]:
    prefix = np.array([1, 25, 27, 15, 26, 28, 33])
    return [Request(prefix, 8, key=k) for k in range(6)]


def update(model: TinyTransformer) -> None:
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            noise = torch.randn(p.shape, generator=torch.Generator().manual_seed(i))
            p.add_(0.3 * float(p.std()) * noise if p.dim() > 1 else 0.0)


def gap(engine: NativeEngine) -> float:
    """Sample, and ask the trainer's forward for the same log-probabilities."""
    done = asyncio.run(complete(engine, requests()))
    again = engine.logprobs([r.prefix for r in requests()], [c.ids for c in done])
    return max(float(np.abs(a - c.logp).max()) for a, c in zip(again, done, strict=True))


def cached(monkeypatch: pytest.MonkeyPatch, salted: bool) -> None:
    """A prefix cache that outlives a call of generate; with or without the version in its key."""
    store: dict[Any, Any] = {}
    prefill = Stream._prefill

    def look_up(self: Stream, slots: np.ndarray) -> Any:
        asked = (self.record.item(i).request.prefix.tobytes() for i in slots.tolist())
        key = (*asked, self.version if salted else 0)
        if key not in store:
            store[key] = prefill(self, slots)
        return store[key]

    monkeypatch.setattr(Stream, "_prefill", look_up)


def test_samples_come_from_the_new_weights(policy: Path) -> None:
    engine = NativeEngine({"policy": load_policy(policy)})
    before = asyncio.run(complete(engine, requests()))
    update(engine.models["policy"])  # type: ignore[arg-type]
    engine.version += 1
    fresh = NativeEngine({"policy": engine.models["policy"]})
    after, want = (asyncio.run(complete(e, requests())) for e in (engine, fresh))
    assert gap(engine) < 1e-4
    assert all(np.array_equal(a.ids, w.ids) for a, w in zip(after, want, strict=True))
    assert any(not np.array_equal(a.ids, b.ids) for a, b in zip(after, before, strict=True))
    assert {int(v) for c in after for v in c.version} == {1} and {int(v) for c in before for v in c.version} == {0}


@pytest.mark.parametrize("salted", [True, False])
def test_a_cache_over_calls_must_be_salted(policy: Path, monkeypatch: pytest.MonkeyPatch, salted: bool) -> None:
    cached(monkeypatch, salted)
    engine = NativeEngine({"policy": load_policy(policy)})
    assert gap(engine) < 1e-4
    update(engine.models["policy"])  # type: ignore[arg-type]
    engine.version += 1
    assert (gap(engine) < 1e-4) == salted


def test_an_update_under_an_open_stream_is_an_error(policy: Path) -> None:
    async def careless() -> None:
        engine = NativeEngine({"policy": load_policy(policy)})
        async for _ in engine.generate(requests()):
            engine.version += 1

    with pytest.raises(RuntimeError, match="old weights"):
        asyncio.run(careless())


def test_the_trainer_tells_the_engine(policy: Path) -> None:
    """Three updates: the version goes with them, and the sampler keeps agreeing with the trainer."""
    with running(policy) as run:
        for step in range(3):
            facts = take_step(run, step).facts
            assert facts["sampler_gap_max"] < 1e-3 and run.engine.version == run.version == step + 1
        assert {int(v) for e in drawn(run, 3) for v in e.sequences[0].version if v >= 0} == {3}


def test_turns_after_an_update_are_computed_by_the_new_weights(policy: Path, tmp_path: Path) -> None:
    """Keys and values stay between the turns of an episode, not between steps: tasks recur, and prompts with them."""
    with running(policy, task=in_world(tmp_path, tasks=9), prompts=4) as run:
        for step in range(2):
            take_step(run, step)
        for e in drawn(run, 2):
            for t in e.turns:
                s = e.sequences[t.sequence]
                [logp] = run.engine.logprobs([s.ids[: t.start]], [s.ids[t.start : t.stop]])
                np.testing.assert_allclose(logp, s.logp[t.start : t.stop], atol=1e-4)
