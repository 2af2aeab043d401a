"""The shapes that people train, on our own transformer: equal to transformers, gradients included, there and back."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from hf_models import SHAPES, SIZE
from test_hf import draws, forest, own_logits
from transformers import AutoModelForCausalLM

from gruppo.policies import (
    Critic,
    Lora,
    TinyConfig,
    TinyTransformer,
    Unadapted,
    clone,
    learned_state,
    load_learned,
    load_policy,
    packed,
)
from gruppo.policies.cache import Kept
from gruppo.policies.rope import Scaling
from gruppo.policies.shape import ARCHITECTURES, read_shape

SHAPE = pytest.mark.parametrize("shape", SHAPES)
NEW = {
    "llama": {"o_bias": True, "qkv_bias": True, "mlp_bias": True, "rope": Scaling("linear", 2.0)},
    "mistral": {"head_dim": 10, "tied": False, "context": 5000},
    "qwen2": {"qkv_bias": True, "tied": False, "rope": Scaling("llama3", 8.0, 1.5, 5.0, 32), "rope_base": 5e5},
    "qwen3": {"qk_norm": True, "head_dim": 12, "kv_heads": 2, "norm_eps": 1e-3},
}


def in_float64(model: Any, policy: TinyTransformer) -> None:
    """The norms of transformers without float32 inside, and its angles for both: what is left is all float64."""

    def exact(norm: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: norm.weight * (x * (x.square().mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt())

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = exact(module)
    cos, sin = model.model.rotary_emb(torch.zeros(1, dtype=torch.float64), torch.arange(policy.context)[None])
    sign = torch.ones(policy.config.head_dim).double()
    sign[: policy.config.head_dim // 2] = -1
    policy.rope_cos, policy.rope_sin = cos[0], sin[0] * sign


def far(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference, relative to the largest number."""
    return float((a - b).detach().abs().max() / b.detach().abs().max())


def logits_of(policy: Any, sequences: list[np.ndarray]) -> torch.Tensor:
    return policy.head(policy(packed(sequences))[0])


def token_by_token(policy: TinyTransformer, sequences: list[np.ndarray], start: int) -> torch.Tensor:
    """Logits of the sequences, of equal length, from `start` on; what is before it comes from a prefill."""
    ids = torch.from_numpy(np.stack(sequences))
    rows, length = ids.shape
    with torch.no_grad():
        _, kv = policy.prefill(packed([s[:start] for s in sequences]))
        cache = policy.cache(rows, start + 2)
        cache.put(0, kv, torch.arange(rows) * start, torch.full((rows,), start), start)
        steps = [policy.decode(ids[:, t], torch.full((rows,), t), cache) for t in range(start, length)]
        return torch.stack([policy.head(h) for h in steps], 1)


# equal to transformers


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-4), (torch.float64, 1e-9)], ids=["float32", "float64"])
@SHAPE
def test_logits_are_those_of_transformers(saved, shape, dtype, close):
    model, folder = saved(shape, dtype)
    policy = load_policy(folder, dtype)
    assert isinstance(policy, TinyTransformer) and policy.fallback == ""
    if dtype == torch.float64:
        in_float64(model, policy)
    with torch.no_grad():
        sequences = draws([9, 1, 30, 2, 48])
        assert far(logits_of(policy, sequences), own_logits(model, sequences)) < close
        sequences, inputs = forest()
        tree, row_M = inputs.tree()
        assert far(policy.head(policy(tree)[0])[row_M], own_logits(model, sequences)) < close
        sequences = draws([20, 20, 20])
        own = own_logits(model, sequences).view(3, 20, -1)
        assert far(token_by_token(policy, sequences, 7), own[:, 7:]) < close


@SHAPE
def test_gradients_are_those_of_transformers(saved, shape):
    model, folder = saved(shape)
    policy, sequences = load_policy(folder), draws([9, 1, 30, 2])
    for m, logits in ((model, own_logits(model, sequences)), (policy, logits_of(policy, sequences))):
        m.zero_grad()
        torch.log_softmax(logits, -1).square().mean().backward()
    mine, theirs = (dict(m.named_parameters()) for m in (policy, model))
    assert mine.keys() == theirs.keys()
    scale = max(float(p.grad.norm()) for p in theirs.values())
    for name, p in theirs.items():  # the gradient of a bias of k is 0: softmax does not see it
        assert float((mine[name].grad - p.grad).norm()) < 1e-4 * max(float(p.grad.norm()), 0.01 * scale), name


@SHAPE
def test_angles_are_those_of_transformers(saved, shape):
    model, folder = saved(shape)
    policy = load_policy(folder)
    cos, sin = model.model.rotary_emb(torch.zeros(1), torch.arange(48)[None])
    half = policy.config.head_dim // 2
    torch.testing.assert_close(policy.rope_cos[:48], cos[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(policy.rope_sin[:48, half:], sin[0, :, half:], rtol=0, atol=1e-5)
    torch.testing.assert_close(policy.rope_sin[:48, :half], -sin[0, :, :half], rtol=0, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="bfloat16 on a CPU can end the process")
@SHAPE
def test_bfloat16(saved, shape):
    model, folder = saved(shape)
    policy, sequences = load_policy(folder, torch.bfloat16, "cuda"), draws([9, 1, 30, 2])
    assert {p.dtype for p in policy.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        logits = policy.head(policy(packed(sequences, "cuda"))[0])
        assert logits.dtype == torch.float32
        assert far(logits.cpu(), own_logits(model, sequences)) < 0.1


# folders


@SHAPE
def test_what_is_saved_transformers_loads(saved, shape, tmp_path):
    _, folder = saved(shape)
    policy, sequences = load_policy(folder), draws([9, 1, 30])
    with torch.no_grad():
        for p in policy.parameters():
            p.mul_(1.1)
    policy.save(tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert far(logits_of(policy, sequences), own_logits(theirs, sequences)) < 1e-4
    one, other = (json.loads((f / "config.json").read_text()) for f in (folder, tmp_path / "out"))
    assert one == other
    again = load_policy(tmp_path / "out")
    assert again.config == policy.config
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("kind", NEW)
def test_a_new_model_of_every_type(kind, tmp_path):
    config = TinyConfig(**{"vocab": 40, "dim": 32, "layers": 2, "ffn": 24, "model_type": kind} | NEW[kind])
    policy, sequences = TinyTransformer(config, seed=1), draws([9, 1, 30])
    assert all(not p.any() for n, p in policy.named_parameters() if n.endswith("bias"))
    assert (policy.model.norm.weight == 1).all()
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    policy.save(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(theirs).__name__ == ARCHITECTURES[kind]
    assert far(logits_of(policy, sequences), own_logits(theirs, sequences)) < 1e-4
    assert load_policy(tmp_path).config == config
    assert theirs.config.tie_word_embeddings == config.tied


def test_several_files(saved):
    model, folder = saved("qwen3", options={"max_shard_size": "8KB"})
    parts = sorted(folder.glob("model-*.safetensors"))
    assert len(parts) > 2 and not (folder / "model.safetensors").exists()
    policy, sequences = load_policy(folder), draws([9, 4])
    assert isinstance(policy, TinyTransformer)
    assert far(logits_of(policy, sequences), own_logits(model, sequences)) < 1e-4
    parts[1].unlink()
    with pytest.raises(ValueError, match="could not be loaded"):
        load_policy(folder)


def test_missing_and_misshapen_weights(saved):
    from safetensors.torch import load_file, save_file

    _, folder = saved("qwen2")
    weights = load_file(folder / "model.safetensors")
    bias = "model.layers.1.self_attn.k_proj.bias"
    for value in (None, weights[bias][:3].clone()):
        odd = {k: value if k == bias else w for k, w in weights.items()}
        save_file({k: w for k, w in odd.items() if w is not None}, folder / "model.safetensors", {"format": "pt"})
        with pytest.raises(ValueError, match=f"1 weights are missing .* such as {bias}. They would start at random"):
            load_policy(folder)


def test_tied_weights_that_are_stored_twice(saved, tmp_path):
    from safetensors.torch import load_file, save_file

    _, folder = saved("llama")
    weights, sequences = load_file(folder / "model.safetensors"), draws([9, 4])
    before = logits_of(load_policy(folder), sequences)
    twice = weights | {"lm_head.weight": weights["model.embed_tokens.weight"].clone()}
    save_file(twice, folder / "model.safetensors", {"format": "pt"})
    policy = load_policy(folder)
    assert policy.config.tied and torch.equal(logits_of(policy, sequences), before)
    save_file(twice | {"lm_head.weight": -twice["lm_head.weight"]}, folder / "model.safetensors", {"format": "pt"})
    policy = load_policy(folder)  # transformers does not tie what differs
    assert not policy.config.tied and torch.equal(logits_of(policy, sequences), -before)
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    assert far(own_logits(theirs, sequences), -before) < 1e-4
    policy.save(tmp_path / "out")
    assert torch.equal(logits_of(load_policy(tmp_path / "out"), sequences), -before)
    assert not json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"]


# training


@pytest.mark.parametrize("adapter", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("shape", ["llama3", "qwen3_biases"])
def test_checkpointing_changes_no_bit_and_keeps_less(saved, shape, adapter):
    if adapter:
        pytest.importorskip("peft")
    _, folder = saved(shape, num_hidden_layers=4)
    tree, _ = forest()[1].tree()
    found, kept, lora = [], [], Lora(rank=2) if adapter else None
    for frugal in (False, True):
        policy, saved_now = load_policy(folder, lora=lora, checkpointing=frugal), []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, s=saved_now: s.append(x.numel()) or x, lambda x: x):
            hidden, states = policy(tree, collect=(0, 2))
        (policy.head(hidden).square().sum() + states[2].sum()).backward()
        found.append([hidden, states[2], *(p.grad for p in learned_state(policy).values())])
        kept.append(sum(saved_now))
        assert token_by_token(policy, draws([8, 8]), 4).isfinite().all()
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert kept[1] < 0.3 * kept[0]


def test_a_backward_pass_keeps_nothing_once_more(saved):
    policy, kept = load_policy(saved("qwen2")[1], checkpointing=True), Kept()
    policy(packed(draws([9, 4])), keep=kept)[0].sum().backward()
    assert [x.shape for x in kept.kv] == [(13, 16)] * 4


@pytest.mark.parametrize("shape", ["qwen3", "biases"])
def test_an_adapter_is_merged_and_the_head_is_frozen(saved, shape, tmp_path):
    pytest.importorskip("peft")
    _, folder = saved(shape)
    plain, policy, sequences = load_policy(folder), load_policy(folder, lora=Lora(rank=3), seed=1), draws([9, 4])
    before = logits_of(plain, sequences)
    assert torch.equal(logits_of(policy, sequences), before)
    assert not policy.output.weight.requires_grad and all("lora_" in n for n in learned_state(policy))
    with torch.no_grad():
        for p in learned_state(policy).values():
            p.add_(0.1)
    after = logits_of(policy, sequences)
    assert far(after, before) > 0.1
    assert torch.equal(logits_of(Unadapted(policy), sequences), before)
    assert clone(policy).output.weight is policy.output.weight
    policy.save(tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert far(own_logits(theirs, sequences), after) < 1e-4


@SHAPE
def test_copies_critics_and_states(saved, shape):
    _, folder = saved(shape)
    policy, sequences = load_policy(folder), draws([9, 4])
    assert policy.output.weight.shape == (40, 32)
    assert ("lm_head.weight" in policy.state_dict()) == (not policy.config.tied)
    copy, critic, before = clone(policy), Critic(policy), logits_of(policy, sequences)
    state = {name: p.detach().clone() for name, p in learned_state(policy).items()}
    with torch.no_grad():
        for p in policy.parameters():
            p.mul_(1.5)
    assert torch.equal(logits_of(copy, sequences), before) and not torch.equal(logits_of(policy, sequences), before)
    hidden = critic(packed(sequences))[0]
    assert torch.equal(copy(packed(sequences))[0], hidden) and critic.head(hidden).shape == (13, 1)
    load_learned(policy, state)
    assert torch.equal(logits_of(policy, sequences), before)


def test_names_that_other_code_reads():
    config = read_shape(SIZE | {"model_type": "qwen3", "head_dim": 12, "rms_norm_eps": 1e-3})
    policy = TinyTransformer(config)
    assert (config.heads, config.kv_heads, config.head_dim, config.norm_eps) == (4, 2, 12, 1e-3)
    attention = policy.model.layers[1].self_attn
    assert attention.q_norm.weight.shape == attention.k_norm.weight.shape == (12,)
    assert attention.q_proj.weight.shape == (48, 32) and attention.o_proj.weight.shape == (32, 48)
    assert policy.rope_cos.shape == policy.rope_sin.shape == (64, 12)
    assert policy.output is policy.lm_head is policy.head and policy.head.owner == ()
    plain = TinyTransformer()
    assert plain.model.layers[0].self_attn.q_norm is plain.model.layers[0].self_attn.k_norm is None
    assert plain.output is plain.model.embed_tokens
