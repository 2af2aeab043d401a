from functools import partial

import hf_models
import pytest


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
