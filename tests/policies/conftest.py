from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hf_models
import pytest
import torch


@pytest.fixture
def hf_model():
    return hf_models.hf_model


@pytest.fixture
def chat_tokenizer():
    return hf_models.chat_tokenizer


@pytest.fixture
def hf_folder(tmp_path):
    """Makes a folder with a model and a tokenizer: hf_folder(family, template)."""
    return partial(hf_models.hf_folder, tmp_path / "model")


@pytest.fixture
def saved(tmp_path) -> Callable[..., tuple[Any, Path]]:
    """Makes (a model of a shape, its folder): saved(shape)."""

    def make(shape: str, dtype: torch.dtype = torch.float32, options: Any = None, **fields: Any) -> tuple[Any, Path]:
        model = hf_models.random_model(shape, dtype, **fields)
        model.save_pretrained(tmp_path / "model", **options or {})
        return model, tmp_path / "model"

    return make
