"""The world of docs/environments.md passes the check that the page names next."""

from pathlib import Path

import pytest
from doc_blocks import blocks

from gruppo.cli import main
from gruppo.envs.check import LAWS


def test_the_world_of_the_page_keeps_the_laws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [text] = blocks("environments.md", title="mine.py")
    Path("mine.py").write_text(text)
    assert main(["env", "check", "./mine.py:Counter"]) == 0
    said = capsys.readouterr().out
    assert "0 broken" in said and all(f" {law.name} " in said for law in LAWS)
