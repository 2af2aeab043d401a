"""The result of a run as folders for transformers and peft, each whole or not at all."""

from pathlib import Path
from typing import Any

from gruppo.data.files import whole_folder
from gruppo.policies.adapter import CONFIG, write_adapter
from gruppo.policies.files import read_json, write_json
from gruppo.policies.lora import has_adapter


def save_policy(folder: str | Path, policy: Any, tokenizer: Any) -> None:
    """Write `folder`: model, tokenizer and what ends an answer. A policy that is there already is replaced.

    An adapter is merged into the weights. It is also written alone, into the folder `adapter` beside `folder`.
    """
    folder = Path(folder)
    with whole_folder(folder, "config.json") as draft:
        policy.save(draft)
        tokenizer.save(draft)
        _write_ends(draft, tokenizer)
    if has_adapter(policy):
        with whole_folder(folder.with_name("adapter"), CONFIG) as draft:
            write_adapter(draft, policy)
            tokenizer.save(draft)


def _write_ends(folder: Path, tokenizer: Any) -> None:
    """All ids that ended an answer in training into generation_config.json, and a padding id."""
    path = folder / "generation_config.json"
    table = read_json(path)
    given = table.get("eos_token_id")
    known = set(given if isinstance(given, list) else [given])
    if known != set(tokenizer.stops):
        table["eos_token_id"] = list(tokenizer.stops) if len(tokenizer.stops) > 1 else tokenizer.stops[0]
    if table.get("pad_token_id") is None:
        table["pad_token_id"] = tokenizer.pad
    write_json(path, table)
