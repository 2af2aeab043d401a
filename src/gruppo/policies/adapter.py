"""An adapter alone, as a folder in peft's format: adapter_config.json and adapter_model.safetensors."""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gruppo.data.files import write_tensors
from gruppo.policies.base import Transformer
from gruppo.policies.described import read_config, refuse
from gruppo.policies.files import first_line, read_json

CONFIG = "adapter_config.json"


def adapter_state(policy: Transformer) -> dict[str, Tensor]:
    """The weights of the adapter, under peft's names."""
    named = policy.root.named_parameters()
    return {f"base_model.model.{n.replace('.default.', '.')}": p for n, p in named if ".lora_" in n}


def write_adapter(folder: Path, policy: Any) -> None:
    """Write a folder that `peft.PeftModel.from_pretrained(base, folder)` puts on the base model."""
    config = copy.copy(policy.trunk.peft_config["default"])
    config.base_model_name_or_path = policy.origin or None
    config.task_type, config.inference_mode = "CAUSAL_LM", True
    config.save_pretrained(str(folder))
    write_tensors(adapter_state(policy), folder / "adapter_model.safetensors", {"format": "pt"})


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and no model of its own."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def base_of(folder: Path) -> str:
    """The model that an adapter belongs on."""
    base = read_json(folder / CONFIG).get("base_model_name_or_path")
    if not isinstance(base, str | None):
        refuse(folder / CONFIG, "base_model_name_or_path", base, "the folder or the name of the base model")
    merged = folder.with_name("policy")
    if not base or (Path(base).is_absolute() and not (Path(base) / "config.json").is_file()):
        raise ValueError(
            f"{folder} is an adapter without weights of its own, and "
            + (f"its base model {base} is not there" if base else f"its {CONFIG} names no base model")
            + ". "
            + (f"Use {merged}, which has the adapter merged, or set" if (merged / "config.json").is_file() else "Set")
            + f" base_model_name_or_path in {CONFIG} to the folder of the base model."
        )
    return str(base)


def load_adapter(
    folder: Path, base: Path, dtype: torch.dtype, device: torch.device | str, checkpointing: bool
) -> Transformer:
    """The base model with the adapter merged into its weights. Any LoRA of peft can be read, not only ours."""
    import peft

    from gruppo.policies.hf import load_hf

    policy = load_hf(base, str(base), read_config(base), dtype, device, checkpointing)
    try:
        adapted: Any = peft.PeftModel.from_pretrained(policy.model, str(folder))
        policy.model = adapted.merge_and_unload()
    except Exception as error:  # peft and torch raise many kinds
        raise ValueError(
            f"the adapter {folder} cannot be put on its base model {base} ({first_line(error)}). Set "
            f"base_model_name_or_path in {CONFIG} to the model that it was trained on."
        ) from None
    policy.model.requires_grad_(True)
    return policy
