"""What is generated is fresh, and the generator says what is wrong."""

from pathlib import Path

import pytest
from doc_blocks import make_docs

DOCS = make_docs()


def test_generated_parts_are_fresh() -> None:
    old = [str(p.relative_to(DOCS.ROOT)) for p in DOCS.stale(DOCS.wanted())]
    assert not old, f"{old}: run `python scripts/make_docs.py`"


def test_check_fails_when_a_page_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "docs" / "methods" / "gone.md"
    page.parent.mkdir(parents=True)
    page.write_text("a method that was removed")
    monkeypatch.setattr(DOCS, "ROOT", tmp_path)
    monkeypatch.setattr(DOCS, "wanted", lambda: {tmp_path / "new.md": "text"})
    monkeypatch.setattr(DOCS, "stale", lambda files, stale=DOCS.stale: stale(files, tmp_path))
    assert DOCS.main(["--check"]) == 1 and page.exists()
    assert DOCS.main([]) == 0 and not page.exists() and (tmp_path / "new.md").read_text() == "text"
    assert DOCS.main(["--check"]) == 0
    assert "stale: docs/methods/gone.md" in capsys.readouterr().out


def test_markers() -> None:
    text = "before\n<!-- x:begin -->\nold\n<!-- x:end -->\nafter"
    assert DOCS.between(text, "x", "new") == text.replace("old", "new")
    with pytest.raises(ValueError, match="markers"):
        DOCS.between("no markers", "x", "new")


def test_formula_becomes_a_code_block() -> None:
    doc = "Name.\n\n    J = A\n    A = 1\n\nDiffers from X."
    assert DOCS.fenced(doc) == "Name.\n\n```text\nJ = A\nA = 1\n```\n\nDiffers from X."


def test_a_name_has_one_meaning() -> None:
    page = "\n## Hyper-parameters\n\n| `eps` | a |\n| `eps` | b |\n"
    with pytest.raises(ValueError, match="twice"):
        DOCS.meanings(page)
