"""Every model, block and head is entered by `forward`: hooks fire, and FSDP2 can shard block by block."""

import asyncio
from collections import Counter

import numpy as np
import pytest
import torch

from gruppo.data import Batch, pack, single_turn
from gruppo.engines import NativeEngine, Request, complete
from gruppo.policies import Critic, Lora, TinyTransformer, Unadapted, clone, load_policy
from gruppo.stages import need
from gruppo.train import forward
from gruppo.train.forward import serve

BLOCK = [
    "input_layernorm.weight",
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "post_attention_layernorm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
]
KEYS = ["model.embed_tokens.weight", *(f"model.layers.{i}.{k}" for i in range(2) for k in BLOCK), "model.norm.weight"]
REQUESTS = [Request(np.array([1, 5, 7]), 4, key=i) for i in range(3)]


def batch() -> Batch:
    rng = np.random.default_rng(0)
    turns = [(rng.integers(0, 23, 5), rng.integers(0, 23, 4 + i), np.zeros(4 + i)) for i in range(5)]
    return pack(
        [single_turn(i, "t", "g", *turn, 0, reward={"task": 0.0}) for i, turn in enumerate(turns)], dtype=torch.float64
    )


def sampled(policy):
    return asyncio.run(complete(NativeEngine({"policy": policy}, eos=None), REQUESTS))


def count(model, blocks, head) -> Counter[str]:
    """Counts the calls of a model, its blocks and its head from now on."""
    calls: Counter[str] = Counter()
    named = [("model", model), ("head", head), *((f"block {i}", b) for i, b in enumerate(blocks))]
    for name, module in named:
        module.register_forward_hook(lambda _m, _a, _y, name=name: calls.update([name]))
    return calls


def expected(times: int, blocks: int) -> dict[str, int]:
    return {"model": times, "head": times, **{f"block {i}": times for i in range(blocks)}}


@pytest.fixture(params=["built-in", "transformers", "LoRA", "without its adapter"])
def hooked(request, make, hf_folder):
    """(a policy, the model of transformers or ours under it, its blocks)."""
    if request.param == "built-in":
        policy = make()
        return policy, policy, policy.model.layers
    pytest.importorskip("peft")
    adapted = request.param != "transformers"
    folder = hf_folder("llama" if adapted else "granite")
    policy = load_policy(folder, lora=Lora(rank=2) if adapted else None)
    blocks = policy.model.layers if adapted else policy.model.model.layers
    return (Unadapted(policy) if request.param == "without its adapter" else policy), policy, blocks


def test_hooks_fire_in_training_and_in_sampling(hooked):
    policy, module, blocks = hooked
    calls = count(module, blocks, policy.head)
    serve(policy, batch(), [need("logp", when="step")], grad=True)
    assert calls == expected(1, len(blocks))
    calls.clear()
    sampled(policy)
    assert calls == expected(4, len(blocks))  # the prefill gives the first token of four
    calls.clear()
    NativeEngine({"policy": policy}).logprobs([np.array([1])], [np.array([2, 3])])
    assert calls == expected(1, len(blocks))


def test_hooks_fire_in_a_critic(make):
    critic = Critic(make())
    calls = count(critic, critic.trunk.model.layers, critic.head)
    serve(critic, batch(), [need("value", "critic", when="step")], grad=True)
    assert calls == expected(1, 2)
    assert critic.head is critic.value


def test_names_and_order_of_weights(make):
    policy = make()
    assert list(policy.state_dict()) == [n for n, _ in policy.named_parameters()] == KEYS
    names = [*(f"trunk.{k}" for k in KEYS), "value.weight", "value.bias"]
    critic = Critic(policy)
    assert list(critic.state_dict()) == [n for n, _ in critic.named_parameters()] == names


def test_names_of_weights_in_transformers(hf_model):
    from gruppo.policies.hf import HFPolicy

    for family in ("llama", "llama_untied", "gpt2"):
        model = hf_model(family)
        policy = HFPolicy(model)
        assert list(policy.state_dict()) == [f"model.{k}" for k in model.state_dict()]
        assert [n for n, _ in policy.named_parameters()] == [f"model.{n}" for n, _ in model.named_parameters()]


def test_the_head_of_a_copy_reads_the_copys_weights(make):
    policy = make()
    copy, hidden = clone(policy), torch.ones(1, 32, dtype=torch.float64)
    before = policy.head(hidden)
    with torch.no_grad():
        policy.model.embed_tokens.weight.mul_(2)
    assert torch.equal(copy.head(hidden), before) and torch.equal(policy.head(hidden), 2 * before)


# FSDP2


@pytest.fixture
def one_rank():
    """A process group of one rank."""
    dist = pytest.importorskip("torch.distributed")
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("PyTorch was built without gloo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # no port that another might take
    yield
    dist.destroy_process_group()


def sharded(policy: TinyTransformer) -> TinyTransformer:
    from torch.distributed.fsdp import fully_shard

    for block in policy.model.layers:
        fully_shard(block)
    return fully_shard(policy)


def step(policy, optimiser) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """(log-probabilities, gradients) of one update."""
    optimiser.zero_grad()
    logp_N = serve(policy, batch(), [need("logp", when="step")], grad=True)["logp_N"]
    logp_N.sum().backward()
    grads = [getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for p in policy.parameters()]
    optimiser.step()
    return logp_N.detach(), grads


def refuse_a_difference(plain, wrapped) -> None:
    """Samples, log-probabilities and gradients of two steps are equal bit for bit."""
    one, other = (torch.optim.SGD(p.parameters(), lr=1e-3) for p in (plain, wrapped))
    for _ in range(2):  # sampling first, so that weights are first gathered without gradients
        for a, b in zip(sampled(plain), sampled(wrapped), strict=True):
            assert a.ids.tolist() == b.ids.tolist() and a.logp.tolist() == b.logp.tolist()
        (logp, grads), (logp_too, grads_too) = step(plain, one), step(wrapped, other)
        assert torch.equal(logp, logp_too)
        assert all(torch.equal(a, b) for a, b in zip(grads, grads_too, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk", [1 << 23, 60], ids=["head at once", "head in chunks"])
def test_fsdp_shards_each_block_without_further_registration(make, one_rank, monkeypatch, dtype, chunk):
    monkeypatch.setattr(forward, "CHUNK_NUMBERS", {"cpu": chunk})
    plain = make(dtype)
    wrapped = sharded(clone(plain, train=True))
    assert [n for n, _ in wrapped.named_parameters()] == KEYS
    refuse_a_difference(plain, wrapped)


def test_fsdp_shards_a_head_of_its_own_and_checkpointed_blocks(make, one_rank):
    plain = make(tied=False, model_type="qwen3", qk_norm=True, head_dim=12)
    plain.checkpointing = True
    wrapped = sharded(clone(plain, train=True))
    assert [n for n, _ in wrapped.named_parameters()][-1] == "lm_head.weight"
    refuse_a_difference(plain, wrapped)
