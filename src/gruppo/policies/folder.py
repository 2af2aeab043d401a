"""The Hugging Face folder of our transformer: config.json, generation_config.json, and safetensors in one or more."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from gruppo.data.files import write_tensors
from gruppo.policies.shape import TinyConfig, differs, read_shape, write_shape

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


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
    paths = [folder / name for name in ("config.json", "generation_config.json")]
    files = {path.name: read_json(path) for path in paths if path.is_file()}
    given = files.get("config.json", {})
    if odd := differs(given):
        raise ValueError(f"{folder}/config.json: {odd}, so the logits would differ. Load it with load_policy.")
    config = read_shape(given)
    weights = {name: w for path in _parts(folder) for name, w in load_file(path).items()}
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
    if (folder / SINGLE).is_file():
        with safe_open(folder / SINGLE, "pt") as file:
            names = set(file.keys())
    else:
        names = set(read_json(folder / INDEX)["weight_map"])
    return "" if "model.embed_tokens.weight" in names else "its weights have other names than model.embed_tokens.weight"


def _parts(folder: Path) -> list[Path]:
    """The files with the weights: one, or those that the index names."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    return [folder / name for name in sorted(set(read_json(folder / INDEX).get("weight_map", {}).values()))]


def refuse_incomplete(name: str, odd: list[str]) -> NoReturn:
    raise ValueError(
        f"model {name!r}: {len(odd)} weights are missing from its files or have the wrong shape, such as "
        f"{odd[0]}. They would start at random. Download the complete model."
    )


def cast(weights: dict[str, Tensor], dtype: torch.dtype, device: torch.device | str) -> dict[str, Tensor]:
    return {name: w.to(device=device, dtype=dtype) for name, w in weights.items()}
