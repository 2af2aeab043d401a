"""A folder with one claim in it, and its first commit."""

import subprocess
from pathlib import Path

import pytest


def folder_with(toml: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes the folder the current one, with the claim `b`."""
    monkeypatch.chdir(folder)
    (folder / "claims").mkdir()
    (folder / "claims" / "b.toml").write_text(toml)
    return folder


def commit(here: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "claims"], ["commit", "-qm", "a rule"]):
        subprocess.run([*git, *words], cwd=here, check=True)
