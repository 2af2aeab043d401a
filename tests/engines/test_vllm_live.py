"""vLLM itself, on a CPU: `make test-vllm`. One engine for each kind of model, since each takes a minute to start."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed: `make test-vllm` has it")

from gruppo.cli.overrides import apply
from gruppo.engines import NativeEngine, Request, complete
from gruppo.engines.vllm import VllmEngine
from gruppo.policies import TinyConfig, TinyTransformer
from gruppo.train.config import RunConfig
from gruppo.train.trainer import train

pytestmark = pytest.mark.timeout(900)
ARGS = {"kv_cache_memory_bytes": 1 << 28, "max_num_seqs": 64}
PROMPTS = [np.array([1, *(10 + (k * 7 + np.arange(3 + k)) % 80)]) for k in range(8)]
NEAR = 1e-4


def moved(policy: Any, by: float, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for w in policy.parameters():
            w.add_(by * torch.randn(w.shape, generator=generator))


def gaps(policy: Any, prompts: list[Any], out: list[Any], temperature: float = 1.0) -> float:
    wanted = NativeEngine({"policy": policy}).logprobs(prompts, [c.ids for c in out], temperature)
    return max(float(np.abs(c.logp - logp).max()) for c, logp in zip(out, wanted, strict=True))


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def both(request: pytest.FixtureRequest) -> Iterator[tuple[Any, VllmEngine]]:
    policy = TinyTransformer(TinyConfig(tied=request.param), seed=5)
    moved(policy, 0.05)
    engine = VllmEngine({"policy": policy}, (2,), ARGS, lambda _: None)
    yield policy, engine
    engine.close()


def test_log_probabilities_before_and_after_new_weights(both: tuple[Any, VllmEngine]) -> None:
    policy, engine = both
    requests = [Request(p, 24, key=k) for k, p in enumerate(PROMPTS)]
    warm = [Request(p, 24, key=k, temperature=0.6, topk_logprobs=4) for k, p in enumerate(PROMPTS)]
    found = []
    for version in range(3):
        for asked, temperature in ((requests, 1.0), (warm, 0.6)):
            out = asyncio.run(complete(engine, asked))
            assert all((c.version == engine.version).all() for c in out)
            found.append(gaps(policy, PROMPTS, out, temperature))
        before = deepcopy(policy)
        moved(policy, 0.03, seed=version + 1)
        engine.sync(engine.version + 1, {"policy": policy})
        assert gaps(before, PROMPTS, out, 0.6) < NEAR < gaps(policy, PROMPTS, out, 0.6)  # the test can fail
    print("largest gaps", found, "seconds of exchanges", engine.sent)
    assert max(found) < NEAR


def test_stops_limits_greedy_and_likely_ids(both: tuple[Any, VllmEngine]) -> None:
    policy, engine = both
    [free] = asyncio.run(complete(engine, [Request(PROMPTS[0], 8, key=1)]))
    stop = int(free.ids[2])
    [cut] = asyncio.run(complete(engine, [Request(PROMPTS[0], 8, key=1, stop=(stop,))]))
    assert cut.reason == "stop" and cut.ids[-1] == stop and stop not in cut.ids[:-1]
    assert cut.ids.tolist() == free.ids[: len(cut.ids)].tolist()  # the same seed
    [short] = asyncio.run(complete(engine, [Request(PROMPTS[0], 1, key=1)]))
    assert len(short.ids) == 1 and short.ids[0] == free.ids[0]
    greedy = Request(PROMPTS[1], 6, key=0, temperature=0, topk_logprobs=3)
    [mine], [theirs] = (asyncio.run(complete(e, [greedy])) for e in (NativeEngine({"policy": policy}), engine))
    assert mine.ids.tolist() == theirs.ids.tolist() and theirs.logp.tolist() == [0.0] * len(theirs.ids)
    warm = Request(PROMPTS[1], 1, key=0, topk_logprobs=3)
    [mine], [theirs] = (asyncio.run(complete(e, [warm])) for e in (NativeEngine({"policy": policy}), engine))
    assert mine.topk is not None and theirs.topk is not None
    assert mine.topk[0].tolist() == theirs.topk[0].tolist()
    np.testing.assert_allclose(mine.topk[1], theirs.topk[1], atol=NEAR)


def test_draws_follow_the_distribution(both: tuple[Any, VllmEngine]) -> None:
    """Seeds of neighbouring keys are independent draws: frequencies of 1,500 tokens are those of the policy."""
    policy, engine = both
    out = asyncio.run(complete(engine, [Request(PROMPTS[3], 1, key=k) for k in range(1500)]))
    ids = np.arange(policy.vocab)
    p_V = np.exp(np.concatenate(NativeEngine({"policy": policy}).logprobs([PROMPTS[3]] * len(ids), list(ids[:, None]))))
    seen_V = np.bincount([int(c.ids[0]) for c in out], minlength=policy.vocab)
    common = p_V * len(out) > 5
    wanted = np.append(p_V[common], p_V[~common].sum()) * len(out)
    found = np.append(seen_V[common], seen_V[~common].sum())
    chi, free = float(((found - wanted) ** 2 / wanted).sum()), len(wanted) - 1
    print("chi-square", chi, "degrees of freedom", free)
    assert chi < free + 4 * (2 * free) ** 0.5


def test_the_same_seed_is_the_same_answer_in_any_company(both: tuple[Any, VllmEngine]) -> None:
    _, engine = both
    one = Request(PROMPTS[2], 16, key=11)
    [alone] = asyncio.run(complete(engine, [one]))
    crowd = asyncio.run(complete(engine, [one, *(Request(p, 16, key=50 + k) for k, p in enumerate(PROMPTS))]))
    assert crowd[0].ids.tolist() == alone.ids.tolist()
    assert len({c.ids.tobytes() for c in crowd}) > 1


def test_weights_that_change_in_flight(both: tuple[Any, VllmEngine]) -> None:
    """Each token has the version of the weights that drew it, and their log-probability given all tokens before it."""
    policy, engine = both
    old, eos = deepcopy(policy), engine.eos
    engine.eos = ()  # long answers

    async def flight() -> list[Any]:
        asked = [Request(p, 150, key=70 + k) for k, p in enumerate(PROMPTS)]
        drawing = asyncio.ensure_future(complete(engine, asked))
        await asyncio.sleep(0.5)
        moved(policy, 0.03, seed=9)
        await asyncio.to_thread(engine.sync, engine.version + 1, {"policy": policy})
        return await drawing

    before = engine.version
    out = asyncio.run(flight())
    engine.eos = eos
    mixed, worst = 0, 0.0
    for p, c in zip(PROMPTS, out, strict=True):
        assert set(c.version.tolist()) <= {before, before + 1} and (np.diff(c.version) >= 0).all()
        first = int((c.version == before).sum())
        mixed += 0 < first < len(c.ids)
        by_old, by_new = (NativeEngine({"policy": m}).logprobs([p], [c.ids])[0] for m in (old, policy))
        wanted = np.concatenate([by_old[:first], by_new[first:]])
        worst = max(worst, float(np.abs(c.logp - wanted).max()))
        assert np.abs(by_old - by_new).max() > 0.1  # the other version would show
    print("largest gap", worst, "answers of two versions", mixed)
    assert mixed >= 4 and worst < NEAR


def gpt2() -> Any:
    """On the modules of transformers, tied, with names of its own."""
    from hf_models import hf_model

    from gruppo.policies.hf import HFPolicy

    model = hf_model("gpt2", vocab=99, dtype=torch.float32, n_embd=128, n_head=4)
    with torch.no_grad():
        for w in model.parameters():
            w.mul_(0.2 if w.dim() > 1 else 1.0)
    return HFPolicy(model)


def qwen3() -> Any:
    """Norms of queries and keys, fewer key heads."""
    return TinyTransformer(TinyConfig(model_type="qwen3", qk_norm=True, kv_heads=2), seed=5)


@pytest.mark.parametrize("kind", [gpt2, qwen3])
def test_other_shapes_and_a_process_that_is_killed(kind: Any) -> None:
    policy = kind()
    engine = VllmEngine({"policy": policy}, (2,), ARGS, lambda _: None)
    try:
        for version in range(2):
            out = asyncio.run(complete(engine, [Request(p, 16, key=k) for k, p in enumerate(PROMPTS)]))
            gap = gaps(policy, PROMPTS, out)
            print(kind.__name__, "largest gap", gap)
            assert gap < NEAR
            moved(policy, 0.03, seed=version)
            engine.sync(version + 1, {"policy": policy})
        for process in engine._running.llm.engine_core.resources.engine_manager.processes:
            os.kill(process.pid, signal.SIGKILL)
        begun = time.monotonic()
        with pytest.raises(ValueError, match="vLLM's process has ended"):
            if kind is gpt2:
                engine.sync(3, {"policy": policy})
            else:
                asyncio.run(complete(engine, [Request(PROMPTS[0], 200, key=0)]))
        print("a killed vLLM was told after", time.monotonic() - begun)
        assert time.monotonic() - begun < 30
    finally:
        engine.close()


def test_a_cancelled_caller_leaves_no_request(both: tuple[Any, VllmEngine]) -> None:
    _, engine = both

    async def gone() -> None:
        drawing = asyncio.ensure_future(complete(engine, [Request(PROMPTS[0], 200, key=0)]))
        await asyncio.sleep(0.1)
        drawing.cancel()
        await asyncio.sleep(0.3)

    asyncio.run(gone())
    assert engine._running.llm.get_num_unfinished_requests() == 0


def test_a_run_of_20_steps_learns(tmp_path: Path) -> None:
    words = ["engine=vllm", "engine.kv_gib=0.5", "engine.rows=256", "steps=20", "prompts=16", "samples=8", "seed=0"]
    words += ["optim.lr=3e-4", "eval.every=0", "eval.prompts=200", "threads=1", "save.name=vllm", "model.device=cpu"]
    config = apply(RunConfig(), [*words, f"save.folder={tmp_path}", "save.tensorboard=no", "show=0"])
    train(config, quiet=True)
    rows = [json.loads(line) for line in (tmp_path / "vllm" / "metrics.jsonl").read_text().splitlines()]
    first, last = rows[0]["held_out"], rows[-1]["held_out"]
    gap = max(row["sampler_gap"] for row in rows if "sampler_gap" in row)
    print("held-out", first, last, "largest mean gap", gap)
    assert last > first + 0.1 and gap < NEAR
