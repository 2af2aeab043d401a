"""Llama-shaped models of any size on our own transformer, from and to Hugging Face folders."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gruppo.policies import folder as hf
from gruppo.policies.lora import merged_state
from gruppo.policies.tiny import TinyTransformer
from gruppo.policies.tokenizer import CharTokenizer

KEPT = ("config.json", "generation_config.json")


class Llama(TinyTransformer):
    """A Llama with tied embeddings and plain rotary positions: the built-in policy, SmolLM2 and their like."""

    files: dict[str, dict[str, Any]] = {}  # the folder's own, written again as they were

    @property
    def trunk(self) -> nn.Module:
        return self.model

    @classmethod
    def load(
        cls, folder: str | Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> "Llama":
        config, weights = hf.read(folder)
        policy = cls(config).to(device=device, dtype=dtype)
        policy.load_state_dict(hf.cast(weights, dtype, device))
        paths = [Path(folder) / name for name in KEPT]
        policy.files = {p.name: json.loads(p.read_text(encoding="utf-8")) for p in paths if p.is_file()}
        return policy

    def save(
        self, folder: str | Path, tokenizer: CharTokenizer | None = None, dtype: torch.dtype | None = None
    ) -> None:
        """Write a folder that transformers loads with the same logits; an adapter is merged into the weights."""
        folder = Path(folder)
        if tokenizer is None and self.vocab == CharTokenizer.vocab:
            tokenizer = CharTokenizer()
        ids = {} if tokenizer is None else {"pad": tokenizer.pad, "bos": tokenizer.bos, "eos": tokenizer.eos}
        stored = dtype or self.model.embed_tokens.weight.dtype
        weights = {name: w.contiguous() for name, w in hf.cast(merged_state(self), stored, "cpu").items()}
        hf.write(folder, self.config, weights, ids)
        for name, content in self.files.items():
            if name == "config.json":
                content = {k: v for k, v in content.items() if k != "torch_dtype"} | {"dtype": str(stored)[6:]}
            (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        if tokenizer is not None:
            tokenizer.save(folder)
