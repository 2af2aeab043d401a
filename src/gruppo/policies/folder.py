"""The Hugging Face folder of a Llama: config.json, generation_config.json, model.safetensors."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

# What a config.json must say, or leave out, for our Llama to compute the same thing.
_FIXED: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_scaling": None,
}


@dataclass(frozen=True)
class TinyConfig:
    """The shape of a Llama with tied embeddings. The default has 0.87 M parameters with the 99 characters."""

    vocab: int = 99
    dim: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 0  # 0: as many as heads
    ffn: int = 384
    context: int = 256
    rope_base: float = 10000.0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.dim % (2 * self.heads):
            raise ValueError(
                f"dim={self.dim} with heads={self.heads}: rotary positions turn pairs, so dim/heads must be "
                "an even whole number. Choose dim as a multiple of 2·heads."
            )
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(
                f"kv_heads={self.kv_heads} does not divide heads={self.heads}: each key head serves equally "
                "many query heads. Choose a divisor, or 0 for as many as heads."
            )


def write(folder: str | Path, config: TinyConfig, weights: dict[str, Tensor], ids: dict[str, int]) -> None:
    """Write the folder; `ids` are pad, bos and eos."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    special = {f"{name}_token_id": i for name, i in ids.items()}
    described = {
        "architectures": ["LlamaForCausalLM"],
        **{k: v for k, v in _FIXED.items() if v is not None},
        "vocab_size": config.vocab,
        "hidden_size": config.dim,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads or config.heads,
        "head_dim": config.dim // config.heads,
        "intermediate_size": config.ffn,
        "max_position_embeddings": config.context,
        "rope_theta": config.rope_base,
        "rms_norm_eps": config.norm_eps,
        "initializer_range": 0.02,
        "torch_dtype": dtype,
        **special,
    }
    sampling = {"_from_model_config": False, "do_sample": True, "max_length": config.context, **special}
    for name, content in (("config.json", described), ("generation_config.json", sampling)):
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def read(folder: str | Path) -> tuple[TinyConfig, dict[str, Tensor]]:
    """Configuration and weights, in the precision in which they were stored."""
    folder = Path(folder)
    told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if odd := differs(told):
        raise ValueError(f"{folder}/config.json: {odd}: the logits would differ. load_policy finds the model for it.")
    rope = told.get("rope_parameters") or {}
    config = TinyConfig(
        vocab=told["vocab_size"],
        dim=told["hidden_size"],
        layers=told["num_hidden_layers"],
        heads=told["num_attention_heads"],
        kv_heads=told.get("num_key_value_heads") or 0,
        ffn=told["intermediate_size"],
        context=told["max_position_embeddings"],
        rope_base=told.get("rope_theta") or rope.get("rope_theta", 10000.0),
        norm_eps=told["rms_norm_eps"],
    )
    weights = load_file(folder / "model.safetensors")
    weights.pop("lm_head.weight", None)  # tied: some writers store it twice
    return config, weights


def differs(told: dict[str, Any]) -> str:
    """Empty if our Llama computes what a config.json describes, else what it says otherwise."""
    told = {"tie_word_embeddings": False} | told  # the only default of a Llama that is not ours
    rope = told.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        told["rope_scaling"] = rope["rope_type"]
    if told.get("model_type") != "llama":
        return f"model_type={told.get('model_type')!r}, but TinyTransformer computes a Llama"
    expected = {**_FIXED, "head_dim": told["hidden_size"] // told["num_attention_heads"]}
    for key, value in expected.items():
        if told.get(key) not in (None, value):  # what is left out has the value of a Llama, and that is ours
            return f"{key}={told[key]!r}, but TinyTransformer computes {key}={value!r}"
    return ""


def cast(weights: dict[str, Tensor], dtype: torch.dtype, device: torch.device | str) -> dict[str, Tensor]:
    return {name: w.to(device=device, dtype=dtype) for name, w in weights.items()}
