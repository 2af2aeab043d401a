"""A config.json, read and checked. What is odd is said with its file, key, value and remedy, before anything is built.

Only the keys that our transformer computes with are looked at, and only of the model types that it knows. The others
are left to transformers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from gruppo.policies.files import read_json
from gruppo.policies.shape import ARCHITECTURES, SIZES

REMEDY = "Correct it, or copy the file of the original model into the folder."
LARGEST = {"num_hidden_layers": 10_000, "max_position_embeddings": 1 << 24}  # beyond them memory or patience ends
TRUTHS = ("attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window", "is_causal")
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder; empty if there is none."""
    path = folder / "config.json"
    given = read_json(path)
    kind = given.get("model_type")
    if not isinstance(kind, str | None):
        refuse(path, "model_type", kind, f"the name of an architecture, such as {', '.join(ARCHITECTURES)}")
    if kind in ARCHITECTURES:
        Checked(path, given).all()
    return given


def ends_of(folder: Path) -> list[int]:
    """The ids that end an answer by generation_config.json and config.json."""
    found = list[int]()
    for path in (folder / "generation_config.json", folder / "config.json"):
        value = read_json(path).get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(is_whole(i, -1) for i in ids):
            refuse(path, "eos_token_id", value, "the id of a token, a list of them, or null")
        found += ids
    return found


def refuse(path: Path, key: str, value: Any, wanted: str) -> NoReturn:
    raise ValueError(f"{path}: {key}={_short(value)}, and it must be {wanted}. The model cannot be used. {REMEDY}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def is_whole(value: Any, least: int, most: int = (1 << 31) - 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1 << 60  # NaN is not


def is_dtype(name: str) -> bool:
    return name == "auto" or isinstance(getattr(torch, name.removeprefix("torch."), None), torch.dtype)


class Checked:
    """The checks of one file."""

    def __init__(self, path: Path, given: Mapping[str, Any]) -> None:
        self.path, self.given = path, given

    def all(self) -> None:
        self._sizes()
        self._heads()
        self._kinds()
        self._rope()
        self._windows()

    def _whole(self, key: str, least: int = 1, null: bool = False) -> None:
        """A key that is left out is fine: the model type has a number of its own."""
        most = LARGEST.get(key, (1 << 31) - 1)
        value = self.given.get(key)
        if key not in self.given or (null and value is None) or is_whole(value, least, most):
            return
        wanted = f"a whole number from {least} to {most:,}" + (", or null" if null else "")
        refuse(self.path, key, value, wanted)

    def _sizes(self) -> None:
        for key in SIZES.values():
            self._whole(key, null=key == "num_key_value_heads")
        self._whole("head_dim", null=True)

    def _heads(self) -> None:
        names = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
        dim, heads, pairs, size = (self.given.get(name) for name in names)
        if size is not None and size % 2:
            refuse(self.path, "head_dim", size, "even, since positions turn pairs of numbers")
        if heads is None:
            return
        if pairs is not None and heads % pairs:
            refuse(self.path, "num_key_value_heads", pairs, f"a divisor of num_attention_heads={heads}")
        if dim is not None and dim % heads and (size is None or self.given["model_type"] == "llama"):
            refuse(self.path, "num_attention_heads", heads, f"a divisor of hidden_size={dim}")
        if dim is not None and size is None and dim // heads % 2:
            refuse(
                self.path, "num_attention_heads", heads, f"such that each head has an even part of hidden_size={dim}"
            )

    def _kinds(self) -> None:
        given = self.given
        for key in TRUTHS:
            if not isinstance(given.get(key, False), bool):
                refuse(self.path, key, given[key], "true or false")
        if not isinstance(given.get("hidden_act", "silu"), str) or given.get("hidden_act") == "":
            refuse(self.path, "hidden_act", given["hidden_act"], "the name of an activation, such as 'silu'")
        eps = given.get("rms_norm_eps", 1e-6)
        if not is_number(eps) or eps < 0:
            refuse(self.path, "rms_norm_eps", eps, "a small number, such as 1e-06")
        for key in ("dtype", "torch_dtype"):
            name = given.get(key)
            if name is not None and not (isinstance(name, str) and is_dtype(name)):
                refuse(self.path, key, name, "the name of a kind of numbers, such as 'bfloat16', or null")
        packing = given.get("quantization_config")
        if packing is not None and not (isinstance(packing, dict) and packing):
            refuse(self.path, "quantization_config", packing, "an object with a quant_method, or null")
        for key in IDS:
            value = given.get(key)
            ids = value if isinstance(value, list) and key == "eos_token_id" else [] if value is None else [value]
            if not all(is_whole(i, -1) for i in ids):
                refuse(self.path, key, value, "the id of a token, or null")

    def _rope(self) -> None:
        given = self.given
        for key in ("rope_scaling", "rope_parameters"):
            rope = given.get(key)
            if not isinstance(rope, dict | None):
                refuse(self.path, key, rope, 'an object, such as {"rope_type": "linear", "factor": 2.0}, or null')
            for name in ("rope_type", "type"):
                if not isinstance((rope or {}).get(name, ""), str):
                    refuse(self.path, f"{key}.{name}", (rope or {})[name], "the name of a scaling, such as 'linear'")
            self._rope_numbers(f"{key}.", rope or {})
        self._rope_numbers("", {k: v for k, v in given.items() if k != "factor"})

    def _rope_numbers(self, where: str, table: Mapping[str, Any]) -> None:
        for name in ("rope_theta", "factor", "partial_rotary_factor"):
            value: Any = table.get(name)
            if name not in table or (value is None and name != "rope_theta"):
                continue
            if value is None or not (is_number(value) and value > 0):
                refuse(self.path, where + name, value, "a number above 0")
        before = table.get("original_max_position_embeddings")
        if before is not None and not is_whole(before, 1):
            refuse(self.path, f"{where}original_max_position_embeddings", before, "a whole number of positions")

    def _windows(self) -> None:
        given = self.given
        self._whole("sliding_window", 1, null=True)
        self._whole("max_window_layers", 0)
        kinds, layers = given.get("layer_types"), given.get("num_hidden_layers")
        if kinds is None:
            return
        if not isinstance(kinds, list) or not all(isinstance(k, str) for k in kinds):
            refuse(self.path, "layer_types", kinds, "a list with a name for each layer, such as 'full_attention'")
        if layers is not None and len(kinds) != layers:
            refuse(
                self.path, "layer_types", kinds, f"a list of num_hidden_layers={layers} names, and it has {len(kinds)}"
            )
