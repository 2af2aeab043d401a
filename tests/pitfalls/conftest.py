from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_runs import save_policy


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small policy."""
    return save_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
