"""engine=vllm without vLLM: what is sent, what comes back, what is refused, and a run on a stand-in."""

import asyncio
import gc
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from fake_vllm import FakeVllm
from hf_models import hf_model

from gruppo.cli.evaluate import evaluations
from gruppo.cli.overrides import apply
from gruppo.engines import NativeEngine, Request, complete
from gruppo.engines.apart import completion_of, seed_of, stops_of
from gruppo.engines.base import NotFinite, RunEngine
from gruppo.engines.vllm import Said, VllmEngine, args_of, exported, params_of, untied, versions_of
from gruppo.policies import Lora, TinyConfig, TinyTransformer, load_policy
from gruppo.train.config import RunConfig
from gruppo.train.doctor import step_zero
from gruppo.train.loop import train_step
from gruppo.train.run import Run, tasks_of

SMALL = ["engine=vllm", "prompts=3", "samples=4", "eval.prompts=4", "model.device=cpu", "threads=1", "optim.lr=0.003"]
PROMPTS = [np.array([1, 20 + k, 30, 40]) for k in range(5)]


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(FakeVllm, "started", [])
    monkeypatch.setattr(FakeVllm, "deaf_after", 99)
    monkeypatch.setattr("gruppo.engines.vllm._vllm", lambda: FakeVllm)
    return FakeVllm


def engine_of(policy, eos=(2,)):
    return VllmEngine({"policy": policy}, eos, {}, lambda _: None, FakeVllm)


@pytest.mark.parametrize("tied", [True, False])
def test_log_probabilities_are_the_trainers_before_and_after_new_weights(fake, tied):
    """The head is sent as a weight of its own, so it is new even where it is tied to the embedding."""
    policy = TinyTransformer(TinyConfig(tied=tied), seed=3)
    engine, trainer, sampled = engine_of(policy), NativeEngine({"policy": policy}), 0
    assert isinstance(engine, RunEngine)
    for version in range(3):
        requests = [Request(p, 6, key=k, temperature=0.7) for k, p in enumerate(PROMPTS)]
        out = asyncio.run(complete(engine, requests))
        wanted = trainer.logprobs(PROMPTS, [c.ids for c in out], 0.7)
        for c, logp in zip(out, wanted, strict=True):
            np.testing.assert_allclose(c.logp, logp, atol=1e-5)
            assert (c.version == version).all()
            sampled += len(c.ids)
        with torch.no_grad():
            for w in policy.parameters():
                w.add_(0.05 * torch.randn_like(w))
        engine.sync(version + 1, {"policy": policy})
    [vllm] = fake.started
    assert vllm.updates == [0, 1, 2, 3] and engine.sampled == sampled > 15
    engine.close()
    assert vllm.closed and not Path(engine.folder.name).exists()


def test_a_run_learns_from_what_vllm_samples(fake):
    run = Run(apply(RunConfig(), SMALL), say=lambda _: None)
    try:
        assert not run.compared and not fake.started  # it starts with the first request
        [gap] = [c for c in asyncio.run(step_zero(run)) if c.name == "sampler_gap"]
        assert gap.ok and gap.value < 1e-4
        before = [w.detach().clone() for w in run.models["policy"].parameters()]
        facts = [asyncio.run(train_step(run, step)).facts for step in range(2)]
        assert run.compared and facts[1]["sampler_gap"] < 1e-4
        assert any(not torch.equal(a, b) for a, b in zip(before, run.models["policy"].parameters(), strict=True))
        [vllm] = fake.started
        assert vllm.updates == [0, 1, 2] and vllm.forgot == 2  # before each step
    finally:
        run.close()
    assert vllm.closed


def test_weights_that_did_not_arrive_stop_the_run(fake, monkeypatch):
    """Step zero cannot see it: the first weights did arrive."""
    monkeypatch.setattr(FakeVllm, "deaf_after", 1)
    run = Run(apply(RunConfig(), SMALL), say=lambda _: None)
    try:
        assert all(c.ok for c in asyncio.run(step_zero(run)) if c.name == "sampler_gap")
        asyncio.run(train_step(run, 0))
        with torch.no_grad():
            run.models["policy"].model.embed_tokens.weight.mul_(1.5)
        run.next_version()
        with pytest.raises(
            ValueError, match=r"sampler_gap.*engine=vllm does not sample from the weights that it was sent"
        ):
            asyncio.run(train_step(run, 1))
    finally:
        run.close()


def test_a_run_that_accepts_the_gap_goes_on(fake, monkeypatch):
    monkeypatch.setattr(FakeVllm, "deaf_after", 1)
    run = Run(apply(RunConfig(), [*SMALL, "accept=sampler_gap"]), say=lambda _: None)
    try:
        run.models["policy"].model.embed_tokens.weight.data.mul_(1.5)
        asyncio.run(train_step(run, 0))
        asyncio.run(train_step(run, 1))
        assert run.compared
    finally:
        run.close()


def test_an_evaluation_with_vllm_is_that_of_the_policy(fake):
    config = apply(RunConfig(), [*SMALL, "eval.temperature=0", "eval.prompts=20"])
    plain = apply(RunConfig(), [*SMALL, "engine=native", "eval.temperature=0", "eval.prompts=20"])
    found, wanted = (
        evaluations(c, tasks_of(c), c.sampling.__class__(max_tokens=0, temperature=0), ["tiny"])["tiny"]
        for c in (config, plain)
    )
    assert [e.text for e in found.episodes] == [e.text for e in wanted.episodes]  # greedy: no luck in it
    assert fake.started[0].closed


# ---- what is sent


def test_the_seed_is_a_function_of_key_and_length():
    one = Request(PROMPTS[0], 4, key=7)
    assert seed_of(one) == seed_of(Request(PROMPTS[1], 9, key=7)) >= 0
    seeds = {seed_of(Request(np.ones(n, np.int64), 4, key=k)) for k in range(50) for n in (3, 4)}
    assert len(seeds) == 100 and max(seeds) < 1 << 63


def test_what_vllm_is_asked_for():
    asked = params_of(Request(PROMPTS[0], 5, key=1, temperature=0.5, stop=(9, 2), topk_logprobs=3), (2, 4))
    assert asked["stop_token_ids"] == [2, 4, 9] == stops_of(Request(PROMPTS[0], 5, key=1, stop=(9, 2)), (2, 4))
    assert (asked["max_tokens"], asked["temperature"], asked["logprobs"]) == (5, 0.5, 3)


def test_settings_reach_vllm(fake):
    words = ["engine.rows=7", "engine.prefill_tokens=99", "engine.cache_tokens=0", "engine.kv_gib=0.5"]
    run = Run(apply(RunConfig(), [*SMALL, *words, "engine.args.seed=5"]), say=lambda _: None)
    try:
        asyncio.run(run.engine.ask(Request(PROMPTS[0], 2, key=0)))
        args = fake.started[0].args
        wanted = {"max_num_seqs": 7, "max_num_batched_tokens": 99, "enable_prefix_caching": False, "seed": 5}
        wanted |= {"kv_cache_memory_bytes": 1 << 29, "max_model_len": 256, "dtype": "float32"}
        wanted |= {"logprobs_mode": "processed_logprobs"}
        assert {name: args[name] for name in wanted} == wanted
    finally:
        run.close()


@pytest.mark.parametrize("family", ["llama", "llama_untied", "gpt_neox"])
def test_names_of_a_model_of_transformers(family):
    from gruppo.policies.hf import HFPolicy

    policy = HFPolicy(hf_model(family, dtype=torch.float32))
    sent, own = exported(policy), policy.model.state_dict()
    assert set(sent) == set(own)  # transformers names a tied head, too
    assert untied(policy.described)["tie_word_embeddings"] is False


def test_an_adapter_is_merged():
    pytest.importorskip("peft")
    plain, policy = load_policy("tiny"), load_policy("tiny", lora=Lora(rank=2))
    with torch.no_grad():
        for name, w in policy.named_parameters():
            if "lora_B" in name:
                w.normal_()
    a, b = exported(plain), exported(policy)
    assert set(a) == set(b) and "lm_head.weight" in a
    differ = [name for name in a if not torch.equal(a[name], b[name])]
    assert differ and all("proj" in name for name in differ)


def test_float64_is_refused():
    with pytest.raises(ValueError, match=r"float64: vLLM does not compute in it. Use model.dtype=float32"):
        args_of(load_policy("tiny", torch.float64), Path("x"), {})


# ---- what comes back


def test_every_token_has_its_version():
    assert versions_of(Said([5, 6, 7], [], "stop", [("3", 0, 1), ("4", 1, 3)])) == [3, 4, 4]
    with pytest.raises(ValueError, match="versions of 1 tokens to an answer of 2"):
        versions_of(Said([5, 6], [], "stop", [("3", 0, 1)]))


def test_a_greedy_answer_is_a_point_mass():
    c = completion_of(Request(PROMPTS[0], 3, key=0, temperature=0), [4, 2], [-0.5, -1.0], [0, 0], "stop")
    assert c.logp.tolist() == [0, 0] and [a.tolist() for a in c.allowed or ()] == [[4], [2]]


def test_most_probable_ids(fake):
    policy, asked = TinyTransformer(TinyConfig(), seed=3), Request(PROMPTS[0], 4, key=0, topk_logprobs=5)
    [c] = asyncio.run(complete(engine_of(policy), [asked]))
    [d] = asyncio.run(complete(NativeEngine({"policy": policy}), [replace(asked, key=seed_of(asked))]))
    assert c.topk is not None and d.topk is not None
    assert c.topk[0].tolist() == d.topk[0].tolist() and c.topk[1].shape == (len(c.ids), 5)


def test_infinite_log_probabilities_are_told():
    with pytest.raises(NotFinite, match="weights are not finite"):
        completion_of(Request(PROMPTS[0], 3, key=0), [4], [-np.inf], [0], "stop")


# ---- what is refused


def test_a_request_beyond_the_promises_is_refused():
    engine = engine_of(load_policy("tiny"))
    steer = lambda ids, position, logits: None  # noqa: E731
    for request, says in (
        (Request(PROMPTS[0], 3, 0, top_p=0.9), "does not promise 'truncation'"),
        (Request(PROMPTS[0], 3, 0, top_k=5), "does not promise 'truncation'"),
        (Request(PROMPTS[0], 3, 0, steer=steer), "does not promise 'steer'"),
        (Request(PROMPTS[0], 3, 0, stop_text=("x",)), "does not promise 'stop_text'"),
        (Request(PROMPTS[0], 3, 0, temperature=0.001), r"samples at 0.01 or more"),
        (Request(PROMPTS[0], 3, 0, role="critic"), "has the policy alone"),
        (Request(PROMPTS[0], 300, 0), "the context is 256"),
    ):
        with pytest.raises(ValueError, match=says):
            engine.generate([request])
    with pytest.raises(ValueError, match="does not promise 'score'"):
        engine.logprobs([PROMPTS[0]], [PROMPTS[0]])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["method=latr"], "latr: .* in rollout needs an engine that promises 'steer', and engine=vllm does not"),
        (["deterministic=true"], r"engine=vllm with engine.lockstep=yes \(which deterministic=true asks for\)"),
        (["engine.url=http://x"], "engine.url=http://x is a setting of engine=remote, and the engine is vllm"),
        (["engine=native", "engine.kv_gib=2"], "engine.kv_gib=2.0 is a setting of engine=vllm"),
    ],
)
def test_runs_that_cannot_be(words, says, fake):
    given = {word.partition("=")[0]: word for word in (*SMALL, *words)}
    with pytest.raises(ValueError, match=says):
        Run(apply(RunConfig(), list(given.values())), say=lambda _: None)
    assert not fake.started


@pytest.mark.parametrize("word", ["ahead=2", "scale.ranks=2"])
def test_one_copy_of_the_weights(word):
    with pytest.raises(ValueError, match=f"engine=vllm with {word}: that engine has one copy of the weights"):
        apply(RunConfig(), ["engine=vllm", word])


def test_its_folder_goes_with_the_engine_closed_or_not(fake, monkeypatch):
    async def broken(self):
        raise ConnectionError("vLLM is gone")

    monkeypatch.setattr(FakeVllm, "close", broken)
    for closed in (True, False):
        engine = engine_of(load_policy("tiny"))
        asyncio.run(engine.ask(Request(PROMPTS[0], 2, key=0)))
        folder = Path(engine.folder.name)
        assert folder.is_dir()
        if closed:
            with pytest.raises(ConnectionError):
                engine.close()
        else:
            engine._aside.close()
        del engine
        gc.collect()
        assert not folder.exists()


def test_vllm_is_missing(monkeypatch):
    monkeypatch.setattr("gruppo.engines.vllm.find_spec", lambda name: None)
    engine = VllmEngine({"policy": load_policy("tiny")}, (2,), {}, lambda _: None)
    with pytest.raises(ValueError, match=r"needs vLLM, which is not installed. pip install 'gruppo\[vllm\]'"):
        asyncio.run(engine.ask(Request(PROMPTS[0], 2, key=0)))


def test_vllm_that_does_not_start_is_tried_once(fake, monkeypatch):
    tries = []

    async def start(args):
        tries.append(args)
        raise ValueError("vLLM did not start")

    monkeypatch.setattr(FakeVllm, "start", start)
    engine = engine_of(load_policy("tiny"))
    with pytest.raises(ValueError, match="did not start"):
        asyncio.run(complete(engine, [Request(p, 2, key=0) for p in PROMPTS]))
    assert len(tries) == 1
    engine.close()


def test_ctrl_c_is_for_the_run_alone(fake):
    """What the thread of vLLM starts inherits its signals: a process of it does not end with the first Ctrl-C."""
    engine = engine_of(load_policy("tiny"))

    async def blocked():
        return signal.pthread_sigmask(signal.SIG_BLOCK, set())

    assert signal.SIGINT in engine._aside(blocked())
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())
    engine.close()
