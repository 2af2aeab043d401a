"""The Hugging Face folder of our transformer: config.json, generation_config.json, and safetensors in one or more."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from gruppo.data.files import write_tensors
from gruppo.policies.described import read_config
from gruppo.policies.files import first_line, read_json, write_json
from gruppo.policies.shape import TinyConfig, differs, read_shape, write_shape

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


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
    described = {**write_shape(config), "torch_dtype": dtype, **special}
    # The whole distribution, as in training: transformers would otherwise sample from the 50 likeliest tokens.
    sampling = {"_from_model_config": False, "do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    sampling |= {"max_length": config.context, **special}
    for name, content in ({"config.json": described, "generation_config.json": sampling} | dict(files)).items():
        if name in files and name == "config.json":
            content = {k: v for k, v in content.items() if k != "torch_dtype"} | {"dtype": dtype}
        write_json(folder / name, content)
    write_tensors(weights, folder / SINGLE, {"format": "pt"})


def read(folder: str | Path) -> tuple[TinyConfig, dict[str, Tensor], dict[str, dict[str, Any]]]:
    """Configuration, weights in the precision of the file, and the JSON files themselves."""
    folder = Path(folder)
    given, others = read_config(folder), folder / "generation_config.json"
    files = {"config.json": given} | ({others.name: read_json(others)} if others.is_file() else {})
    if odd := differs(given):
        raise ValueError(f"{folder}/config.json: {odd}, so the logits would differ. Load it with load_policy.")
    config = read_shape(given)
    weights = {name: w for path in _parts(folder) for name, w in _tensors(path).items()}
    _refuse_other_weights(folder, config, weights)
    head, embedding = weights.get("lm_head.weight"), weights.get("model.embed_tokens.weight")
    # Some writers store tied weights twice. Where the two differ transformers does not tie them either.
    if config.tied and head is not None and embedding is not None and not torch.equal(head, embedding):
        config = replace(config, tied=False)
        files["config.json"] = given | {"tie_word_embeddings": False}
    return config, weights, files


def unfit(folder: Path, given: Mapping[str, Any]) -> str:
    """Empty if our transformer can load a folder with this config.json, else why it cannot."""
    if odd := differs(given):
        return odd
    parts = _parts(folder)
    if not parts:
        return "its weights are not in model.safetensors"
    if missing := [path.name for path in parts if not path.is_file()]:
        return f"{missing[0]} is missing"
    single = folder / SINGLE
    names = _names(single) if single.is_file() else set(read_json(folder / INDEX)["weight_map"])
    return "" if "model.embed_tokens.weight" in names else "its weights have other names than model.embed_tokens.weight"


def _parts(folder: Path) -> list[Path]:
    """The files with the weights: one, or those that the index names."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    places = read_json(folder / INDEX).get("weight_map", {})
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ValueError(f"{folder / INDEX}: weight_map is no table of weights and their files. Download it again.")
    return [folder / name for name in sorted(set(places.values()))]


def _names(path: Path) -> set[str]:
    try:
        with safe_open(path, "pt") as file:
            return set(file.keys())
    except (SafetensorError, OSError) as error:
        _refuse_damaged(path, error)


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        _refuse_damaged(path, error)


def _refuse_damaged(path: Path, error: Exception) -> NoReturn:
    size = path.stat().st_size if path.is_file() else 0
    raise ValueError(
        f"{path} ({size:,} bytes) is no whole file of safetensors ({first_line(error)}), so there are no weights to "
        "load. Download it again."
    ) from None


def _refuse_other_weights(folder: Path, config: TinyConfig, weights: Mapping[str, Tensor]) -> None:
    """Weights of other sizes than config.json says, or more of them: before a model of these sizes is made."""
    embedding, first = "model.embed_tokens.weight", "model.layers.0."
    kv_heads = "num_key_value_heads × head_dim"
    for key, told, name, side in (
        ("vocab_size", config.vocab, embedding, 0),
        ("hidden_size", config.dim, embedding, 1),
        ("intermediate_size", config.ffn, f"{first}mlp.gate_proj.weight", 0),
        ("num_attention_heads × head_dim", config.heads * config.head_dim, f"{first}self_attn.q_proj.weight", 0),
        (kv_heads, config.kv_heads * config.head_dim, f"{first}self_attn.k_proj.weight", 0),
    ):
        shape = tuple(weights[name].shape) if name in weights else ()
        if len(shape) == 2 and shape[side] != told:
            _refuse_told(folder, f"{key}={told}", f"{name} has the shape {shape[0]} × {shape[1]}")
    layers = {int(found[1]) for name in weights if (found := re.match(r"model\.layers\.(\d+)\.", name))}
    if layers and len(layers) != config.layers:
        _refuse_told(folder, f"num_hidden_layers={config.layers}", f"they are of {len(layers)} layers")
    unused = {"self_attn.q_proj.bias": config.qkv_bias, "self_attn.o_proj.bias": config.o_bias}
    unused |= {"mlp.gate_proj.bias": config.mlp_bias, "self_attn.q_norm.weight": config.qk_norm}
    for part, used in unused.items():
        if first + part in weights and not used:
            told = f"model_type={config.model_type!r}, and its biases,"
            _refuse_told(folder, f"{told} have no {part}", f"{first}{part} would be left out")
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    for name, w in weights.items():
        if w.dtype not in kinds and name.endswith((".weight", ".bias")):
            raise ValueError(
                f"{folder}: {name} is {str(w.dtype).removeprefix('torch.')}, so it is quantised, or damaged, and "
                "cannot be trained. Use the model in bfloat16, float16 or float32."
            )


def _refuse_told(folder: Path, told: str, found: str) -> NoReturn:
    raise ValueError(
        f"{folder}/config.json: {told}, but of the weights in the folder {found}. They do not belong together. Correct "
        "config.json, or download the complete model."
    )


def refuse_incomplete(name: str, odd: list[str]) -> NoReturn:
    raise ValueError(
        f"model {name!r}: {len(odd)} weights are missing from its files or have the wrong shape, such as "
        f"{odd[0]}. They would start at random. Download the complete model."
    )


def cast(weights: dict[str, Tensor], dtype: torch.dtype, device: torch.device | str) -> dict[str, Tensor]:
    return {name: w.to(device=device, dtype=dtype) for name, w in weights.items()}
