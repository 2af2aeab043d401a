"""What a config.json means to our own transformer, what it does not compute, and the angles of the positions."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from hf_models import LLAMA3
from test_hf import draws, own_logits
from test_shapes import far, logits_of
from transformers import AutoConfig, AutoModelForCausalLM

from gruppo.policies import TinyConfig, TinyTransformer, load_policy, packed
from gruppo.policies.rope import Scaling, tables
from gruppo.policies.shape import differs


def edit(folder: Path, **fields: Any) -> dict[str, Any]:
    """Change fields of a config.json; those that are `...` go."""
    path = folder / "config.json"
    given = {k: v for k, v in (json.loads(path.read_text()) | fields).items() if v is not ...}
    path.write_text(json.dumps(given))
    return given


OLD = {"rope_parameters": ..., "rope_theta": 500.0}


@pytest.mark.parametrize(
    ("shape", "changed"),
    [
        ("linear", OLD | {"rope_scaling": {"type": "linear", "factor": 4.0}}),
        ("linear", OLD | {"rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 4}}),
        ("llama3", {"rope_parameters": ..., "rope_scaling": LLAMA3}),
        ("llama3", {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 9}}),
        ("llama3", {"original_max_position_embeddings": 9}),
        ("linear", OLD),
        ("llama", {"rope_parameters": {"rope_theta": 77.0}, "rope_theta": 5.0}),
        ("llama", {"rope_parameters": {"rope_theta": 77.0}, "rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
        ("llama", {"rms_norm_eps": ..., "hidden_act": ..., "attention_bias": ..., "mlp_bias": ..., "head_dim": ...}),
        ("mistral", {"head_dim": ..., "num_attention_heads": 4, "hidden_size": 40}),
        ("qwen2", {"attention_bias": True, "mlp_bias": True}),  # which it does not ask
    ],
)
def test_what_a_config_means_transformers_says(saved, shape, changed):
    wide = {"hidden_size": 40} if "hidden_size" in changed else {}
    _, folder = saved(shape, **wide)
    edit(folder, **changed)
    policy, sequences = load_policy(folder), draws([30, 4])
    assert isinstance(policy, TinyTransformer)
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    assert far(logits_of(policy, sequences), own_logits(theirs, sequences)) < 1e-4


def test_a_left_out_number_of_heads_of_a_llama_is_that_of_the_queries(saved):
    model, folder = saved("llama", num_key_value_heads=4)
    edit(folder, num_key_value_heads=...)
    assert far(logits_of(load_policy(folder), draws([9])), own_logits(model, draws([9]))) < 1e-4


def test_a_window_limits_the_context(saved):
    from gruppo.policies.hf import context_of

    cases = [
        ("mistral", {"sliding_window": 16}, 16),
        ("mistral", {"sliding_window": 100}, 64),
        ("mistral", {"sliding_window": None}, 64),
        ("mistral", {"max_position_embeddings": 8192, "sliding_window": ...}, 4096),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": False}, 64),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": True, "layer_types": ..., "max_window_layers": ...}, 64),
        ("qwen3", {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1, "layer_types": ...}, 16),
    ]
    for shape, changed, context in cases:
        _, folder = saved(shape)
        edit(folder, **changed)
        assert load_policy(folder).context == context, changed
        assert context_of(AutoConfig.from_pretrained(folder)) == context, changed
    policy = load_policy(saved("mistral", sliding_window=16)[1])
    with pytest.raises(ValueError, match="pos_M reaches 19, the policy's context is 16"):
        policy(packed(draws([20])))


ROPE = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": 8.0}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "gemma"}, "model_type='gemma' is none of llama, mistral, qwen2, qwen3"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu', and the only activation here is silu"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type='yarn' is not known"),
        ({"rope_parameters": {"rope_type": "linaer"}}, "rope_type='linaer' is not known (nearest: linear)"),
        ({"rope_scaling": {"factor": 2.0}}, "names no rope_type"),
        ({"rope_scaling": {"type": "linear"}}, "factor=None in its rope_scaling is no number"),
        ({"rope_scaling": {"type": "linear", "factor": 0.0}}, "rope factor=0.0: frequencies are divided by it"),
        ({"rope_scaling": ROPE | {"low_freq_factor": 4.0}}, "low=4.0 and high=4.0"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ from layer to layer"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"quantization_config": {"quant_method": "gptq"}}, "its weights are quantised"),
        ({"hidden_size": ...}, "its config.json leaves out hidden_size"),
        ({"vocab_size": "40"}, "vocab_size='40' in its config.json is no size"),
        ({"num_key_value_heads": 3}, "kv_heads=3 does not divide heads=4"),
        ({"head_dim": 5}, "the size of a head must be an even integer"),
        ({"model_type": "qwen3", "head_dim": ...}, "leaves out head_dim"),
        ({"model_type": "mistral", "num_key_value_heads": ...}, "leaves out num_key_value_heads"),
        ({"model_type": "qwen2", "layer_types": ["chunked_attention"] * 2}, "layer_types=['chunked_attention']"),
        (
            {"model_type": "qwen2", "layer_types": ["sliding_attention"] * 2},
            "use_sliding_window or sliding_window is off",
        ),
    ],
)
def test_what_is_not_known_is_said(saved, changed, said):
    _, folder = saved("llama")
    given = edit(folder, **changed)
    assert said in differs(given)
    with pytest.raises(ValueError, match=r"so the logits would differ\. Load it with load_policy|, and it must be "):
        TinyTransformer.load(folder)


def test_what_falls_back_says_why(saved):
    from safetensors.torch import load_file, save_file

    model, folder = saved("llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    policy = load_policy(folder)
    assert policy.fallback == (
        f"model {folder} runs on the modules of transformers: rope_type='dynamic' is not known. Use one of default, "
        "linear, llama3."
    )
    assert far(logits_of(policy, draws([9])), own_logits(model, draws([9]))) < 1e-4
    model, folder = saved("llama")
    weights = {k.removeprefix("model."): w for k, w in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert load_policy(folder).fallback.endswith("its weights have other names than model.embed_tokens.weight.")
    assert far(logits_of(load_policy(folder), draws([9])), own_logits(model, draws([9]))) < 1e-4
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="could not be loaded"):
        load_policy(folder)


def test_shapes_that_transformers_would_compute_otherwise():
    for fields, said in (
        ({"model_type": "qwen"}, r"model_type='qwen' is not known \(nearest: qwen"),
        ({"model_type": "qwen2"}, "qkv_bias=False: transformers computes qkv_bias=True there"),
        ({"qkv_bias": True}, "qkv_bias=True: transformers computes qkv_bias=False there"),
        ({"qk_norm": True}, "transformers computes qk_norm=False there"),
        ({"model_type": "qwen3"}, "Set qk_norm=True, or another model_type"),
        ({"model_type": "mistral", "o_bias": True}, "o_bias=True: transformers computes o_bias=False"),
        ({"model_type": "qwen2", "qkv_bias": True, "mlp_bias": True}, "mlp_bias=True: transformers computes"),
        ({"dim": 30, "heads": 4, "head_dim": 8}, "which transformers refuses for a Llama"),
    ):
        with pytest.raises(ValueError, match=said):
            TinyConfig(**fields)
    assert (TinyConfig(heads=8).kv_heads, TinyConfig(heads=8).head_dim) == (8, 16)


# angles


def test_every_number_of_a_scaling_matters():
    scaled = Scaling("llama3", 8.0, 1.0, 4.0, 32)
    before = tables(50, 16, 10000.0, scaled)[0]
    changes = [{"kind": "linear"}, {"kind": "default"}, {"factor": 4.0}, {"low": 0.5}, {"high": 5.0}, {"original": 40}]
    for change in changes:
        assert (tables(50, 16, 10000.0, replace(scaled, **change))[0] - before).abs().max() > 1e-2, change
    assert (tables(50, 16, 500.0, scaled)[0] - before).abs().max() > 1e-2


def test_tables_are_computed_in_pieces_and_exact_far_out(monkeypatch):
    whole = tables(100, 8, 10000.0, Scaling())
    monkeypatch.setattr("gruppo.policies.rope.PIECE", 7)
    for a, b in zip(whole, tables(100, 8, 10000.0, Scaling()), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-7)
    monkeypatch.undo()
    cos, sin = tables(131_072, 4, 10000.0, Scaling("linear", 2.0))
    at = np.array([0, 8191, 8192, 100_001, 131_071])
    angle = at[:, None] / 2 * np.array([1.0, 0.01, 1.0, 0.01])
    np.testing.assert_allclose(cos[at], np.cos(angle), atol=1e-6)
    np.testing.assert_allclose(sin[at], np.sin(angle) * [-1, -1, 1, 1], atol=1e-6)
    assert cos.dtype == torch.float32
