"""The Hugging Face folder of a Llama: config.json, generation_config.json, model.safetensors."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from gruppo.data.files import write_tensors

# Values that a config.json must have, or leave out, for TinyTransformer to compute the same thing.
_FIXED: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_scaling": None,
}
# Fields of TinyConfig in a config.json.
_NAMES = {
    "vocab": "vocab_size",
    "dim": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "context": "max_position_embeddings",
    "rope_base": "rope_theta",
    "norm_eps": "rms_norm_eps",
}


@dataclass(frozen=True)
class TinyConfig:
    """The shape of a Llama with tied embeddings. The default has 0.87 M parameters and 99 characters."""

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
                f"dim={self.dim} with heads={self.heads}: rotary embeddings turn pairs, so dim/heads must be an even "
                "integer. Choose dim as a multiple of 2·heads."
            )
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(
                f"kv_heads={self.kv_heads} does not divide heads={self.heads}: every key head serves the same number "
                "of query heads. Choose a divisor, or 0 for as many as heads."
            )


def read_json(path: Path) -> dict[str, Any]:
    """The content of a file; empty if there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def first_line(error: Exception) -> str:
    """The message of a foreign exception, short enough to be quoted."""
    return next((line.rstrip(".") for line in str(error).strip().splitlines()), type(error).__name__)


def write(
    folder: str | Path,
    config: TinyConfig,
    weights: Mapping[str, Tensor],
    ids: Mapping[str, int],
    files: Mapping[str, dict[str, Any]],
) -> None:
    """Write the folder. `ids` are pad, bos and eos; `files` replace the generated JSON files."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    special = {f"{name}_token_id": i for name, i in ids.items()}
    described = {
        "architectures": ["LlamaForCausalLM"],
        **{k: v for k, v in _FIXED.items() if v is not None},
        **{key: getattr(config, name) for name, key in _NAMES.items()},
        "num_key_value_heads": config.kv_heads or config.heads,
        "head_dim": config.dim // config.heads,
        "initializer_range": 0.02,
        "torch_dtype": dtype,
        **special,
    }
    # The whole distribution, as in training: transformers would otherwise sample from the 50 likeliest tokens.
    sampling = {"_from_model_config": False, "do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    sampling |= {"max_length": config.context, **special}
    for name, content in ({"config.json": described, "generation_config.json": sampling} | dict(files)).items():
        if name in files and name == "config.json":
            content = {k: v for k, v in content.items() if k != "torch_dtype"} | {"dtype": dtype}
        write_json(folder / name, content)
    write_tensors(weights, folder / "model.safetensors", {"format": "pt"})


def read(folder: str | Path) -> tuple[TinyConfig, dict[str, Tensor], dict[str, dict[str, Any]]]:
    """Configuration, weights in the precision of the file, and the JSON files themselves."""
    folder = Path(folder)
    paths = [folder / name for name in ("config.json", "generation_config.json")]
    files = {path.name: read_json(path) for path in paths if path.is_file()}
    given = files.get("config.json", {})
    if odd := differs(given):
        raise ValueError(f"{folder}/config.json: {odd}, so the logits would differ. Load it with load_policy.")
    rope = given.get("rope_parameters") or {}
    given = given | {
        "num_key_value_heads": given.get("num_key_value_heads") or 0,
        "rope_theta": given.get("rope_theta") or rope.get("rope_theta", 10000.0),
    }
    config = TinyConfig(**{name: given[key] for name, key in _NAMES.items()})
    weights = load_file(folder / "model.safetensors")
    weights.pop("lm_head.weight", None)  # tied: some writers store it twice
    return config, weights, files


def differs(given: dict[str, Any]) -> str:
    """Empty if TinyTransformer computes what a config.json describes, else the first difference."""
    given = {"tie_word_embeddings": False} | given  # the only default of a Llama that differs from ours
    rope = given.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        given["rope_scaling"] = rope["rope_type"]
    if given.get("model_type") != "llama":
        return f"model_type={given.get('model_type')!r}, but TinyTransformer is a Llama"
    expected = {**_FIXED, "head_dim": given["hidden_size"] // given["num_attention_heads"]}
    for key, value in expected.items():
        if given.get(key) not in (None, value):  # left out: the default of a Llama, which is ours
            return f"{key}={given[key]!r}, but TinyTransformer computes {key}={value!r}"
    return ""


def cast(weights: dict[str, Tensor], dtype: torch.dtype, device: torch.device | str) -> dict[str, Tensor]:
    return {name: w.to(device=device, dtype=dtype) for name, w in weights.items()}
