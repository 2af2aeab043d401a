"""Fixtures of a user at a terminal: an empty folder, one thread, no pictures unless asked for."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gruppo.train.folder import RunFolder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test is a user in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def picture() -> None:
    """For tests that want the curves drawn."""


@pytest.fixture(autouse=True)
def no_picture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing the curves takes as long as the small run itself."""
    if "picture" not in request.fixturenames:
        monkeypatch.setattr(RunFolder, "draw_curves", lambda *_: None)
