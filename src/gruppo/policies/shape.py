"""The shape of our transformer, and the config.json that describes it to transformers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gruppo.policies.rope import BASE, Scaling, read_rope, write_rope

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# Sizes of TinyConfig, with their names in a config.json.
SIZES = {
    "vocab": "vocab_size",
    "dim": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "intermediate_size",
    "context": "max_position_embeddings",
}
# Defaults of all four model types.
_EPS, _WINDOW, _WINDOW_LAYERS = 1e-6, 4096, 28


@dataclass(frozen=True)
class TinyConfig:
    """The shape of a Llama, Mistral, Qwen2 or Qwen3. The default has 0.87 M parameters and 99 characters."""

    vocab: int = 99
    dim: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 0  # 0: as many as heads
    ffn: int = 384
    context: int = 256
    rope_base: float = BASE
    norm_eps: float = 1e-5
    head_dim: int = 0  # 0: dim / heads
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm of every query and key, before they are turned
    tied: bool = True  # the head is the embedding
    rope: Scaling = Scaling()
    model_type: str = "llama"  # what transformers calls it, in the config.json of a saved model

    def __post_init__(self) -> None:
        if (self.dim % (2 * self.heads) and not self.head_dim) or self.head_dim % 2:
            raise ValueError(
                f"dim={self.dim} with heads={self.heads} and head_dim={self.head_dim}: rotary embeddings turn pairs, "
                "so the size of a head must be an even integer. Choose dim as a multiple of 2·heads, or an even "
                "head_dim."
            )
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(
                f"kv_heads={self.kv_heads} does not divide heads={self.heads}: every key head serves the same number "
                "of query heads. Choose a divisor, or 0 for as many as heads."
            )
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.dim // self.heads)
        self._refuse_what_transformers_computes_otherwise()

    def _refuse_what_transformers_computes_otherwise(self) -> None:
        if self.model_type not in ARCHITECTURES:
            from gruppo.stages.names import nearest  # not above: the stages import the policies

            raise ValueError(
                f"model_type={self.model_type!r} is not known{nearest(self.model_type, ARCHITECTURES)}, so a saved "
                f"model could not be loaded. Use one of {', '.join(ARCHITECTURES)}."
            )
        for field, value in _extras(self.model_type, self.o_bias, self.mlp_bias).items():
            if getattr(self, field) != value:
                raise ValueError(
                    f"model_type={self.model_type!r} with {field}={getattr(self, field)}: transformers computes "
                    f"{field}={value} there, so a saved model would have other logits. Set {field}={value}, or "
                    f"another model_type of {', '.join(ARCHITECTURES)}."
                )
        if self.model_type == "llama" and self.dim % self.heads:
            raise ValueError(
                f"dim={self.dim} is no multiple of heads={self.heads}, which transformers refuses for a Llama. Choose "
                "a multiple, or model_type='mistral'."
            )


def _extras(model_type: str, attention_bias: bool, mlp_bias: bool) -> dict[str, bool]:
    """Biases and norms of a model type. Qwen2 and Mistral do not ask config.json about them."""
    asked = model_type in ("llama", "qwen3") and attention_bias
    return {
        "qkv_bias": asked or model_type == "qwen2",
        "o_bias": asked,
        "mlp_bias": model_type == "llama" and mlp_bias,
        "qk_norm": model_type == "qwen3",
    }


def write_shape(config: TinyConfig) -> dict[str, Any]:
    """The fields of a config.json."""
    kind = config.model_type
    told: dict[str, Any] = {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tied,
    }
    if kind in ("llama", "qwen3"):
        told["attention_bias"] = config.o_bias
    if kind == "llama":
        told["mlp_bias"] = config.mlp_bias
    if kind == "mistral":
        told["sliding_window"] = None  # left out it would be 4,096
    return {
        **told,
        **{key: getattr(config, name) for name, key in SIZES.items()},
        **write_rope(config.rope_base, config.rope),
        "rms_norm_eps": config.norm_eps,
        "head_dim": config.head_dim,
        "initializer_range": 0.02,
    }


def read_shape(given: Mapping[str, Any]) -> TinyConfig:
    """The shape that a config.json describes. A ValueError says what our transformer does not compute."""
    kind = given.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ValueError(f"model_type={kind!r} is none of {', '.join(ARCHITECTURES)}")
    if given.get("quantization_config"):
        raise ValueError("its weights are quantised")
    if given.get("is_causal") is False:
        raise ValueError("is_causal=False, and attention here is causal")
    if (act := given.get("hidden_act") or "silu") != "silu":
        raise ValueError(f"hidden_act={act!r}, and the only activation here is silu")
    needed = {*SIZES.values()} | {"head_dim"} if kind == "qwen3" else {*SIZES.values()}
    # A Llama alone derives it from the others; the other types have numbers of their own for what is left out.
    if left_out := sorted(needed - set(given) - ({"num_key_value_heads"} if kind == "llama" else set())):
        raise ValueError(f"its config.json leaves out {', '.join(left_out)}")
    sizes = {name: _whole(given, key, 0 if name == "kv_heads" else None) for name, key in SIZES.items()}
    base, scaling = read_rope(given)
    return TinyConfig(
        **sizes | {"context": min(sizes["context"], _window(kind, given) or sizes["context"])},
        head_dim=_whole(given, "head_dim", 0),
        rope_base=base,
        rope=scaling,
        norm_eps=given.get("rms_norm_eps", _EPS),
        tied=bool(given.get("tie_word_embeddings", False)),
        model_type=kind,
        **_extras(kind, bool(given.get("attention_bias")), bool(given.get("mlp_bias"))),
    )


def _whole(given: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = default if given.get(key) is None else given[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < (1 if default is None else 0):
        raise ValueError(f"{key}={value!r} in its config.json is no size")
    return value


def _window(kind: str, given: Mapping[str, Any]) -> int:
    """The size of the sliding window, within which attention is whole; 0 without one."""
    if kind == "llama":
        return 0
    window = _whole(given, "sliding_window", 0) if "sliding_window" in given else _WINDOW
    if kind == "mistral":
        return window
    window = window if given.get("use_sliding_window") else 0
    first = given.get("max_window_layers", _WINDOW_LAYERS)
    usual = ["sliding_attention"] if window and first < given["num_hidden_layers"] else ["full_attention"]
    kinds = set(given.get("layer_types") or usual)
    if odd := kinds - {"full_attention", "sliding_attention"}:
        raise ValueError(f"layer_types={sorted(odd)!r}, and only full and sliding attention are known here")
    if "sliding_attention" in kinds and not window:
        raise ValueError("layer_types has sliding_attention, but use_sliding_window or sliding_window is off")
    return window if "sliding_attention" in kinds else 0


def differs(given: Mapping[str, Any]) -> str:
    """Empty if our transformer computes what a config.json describes, else the first thing that it does not."""
    try:
        read_shape(given)
    except ValueError as error:
        return str(error).rstrip(".")
    return ""
