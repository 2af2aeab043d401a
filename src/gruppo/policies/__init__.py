"""Policies: a built-in tiny transformer, its tokenizer, and loading by name or folder."""

import difflib
from pathlib import Path

import torch

from gruppo.policies.base import Incremental, Policy, clone
from gruppo.policies.cache import Cache
from gruppo.policies.critic import Critic
from gruppo.policies.folder import TinyConfig
from gruppo.policies.layout import packed
from gruppo.policies.tiny import TinyTransformer
from gruppo.policies.tokenizer import CharTokenizer

__all__ = [
    "Cache", "CharTokenizer", "Critic", "Incremental", "Policy", "TinyConfig", "TinyTransformer", "clone",
    "load_policy", "load_tokenizer", "names", "packed",
]  # fmt: skip

WEIGHTS = Path(__file__).parent / "weights"
RANDOM = "tiny-random"


def names() -> list[str]:
    """Names that `load_policy` knows: the weights in the package, and one without training."""
    shipped = [p.parent.name for p in WEIGHTS.glob("*/config.json")]
    return [*sorted(shipped), RANDOM]


def _folder(name: str | Path) -> Path:
    for path in (WEIGHTS / name, Path(name)):
        if (path / "config.json").is_file():
            return path
    near = difflib.get_close_matches(str(name), names(), 1, cutoff=0.4)
    if (Path(name) / "policy" / "config.json").is_file():  # a run folder
        near = [str(Path(name) / "policy")]
    raise ValueError(
        f"policy {str(name)!r} is no name in the package and no folder with a config.json: there is nothing "
        "to load. " + (f"Did you mean {near[0]!r}? " if near else "") + f"Names: {', '.join(names())}; or a folder "
        "that a run has saved, runs/NAME/policy. Other models cannot be loaded yet."
    )


def load_policy(
    name: str | Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", seed: int = 0
) -> TinyTransformer:
    """A policy by name or from a Hugging Face folder. `seed` is for `tiny-random`, whose weights it makes."""
    if str(name) == RANDOM:
        return TinyTransformer(TinyConfig(vocab=CharTokenizer.vocab), seed).to(device=device, dtype=dtype)
    return TinyTransformer.load(_folder(name), dtype, device)


def load_tokenizer(name: str | Path) -> CharTokenizer:
    """The tokenizer that belongs to a policy."""
    return CharTokenizer() if str(name) == RANDOM else CharTokenizer.load(_folder(name))
