"""What is generated is fresh, and the generator says what is wrong."""

import re
from ast import literal_eval
from pathlib import Path

import pytest
from doc_blocks import make_docs

from gruppo.cli.commands import CONFIDENCE
from gruppo.cli.overrides import apply
from gruppo.methods import built_in
from gruppo.stages import Method
from gruppo.train.config import RunConfig

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


@pytest.mark.parametrize("m", built_in().values(), ids=lambda m: m.name)
def test_every_setting_of_a_page_can_be_set(m: Method) -> None:
    """And setting it to what it is changes nothing."""
    table = DOCS.settings_table(m, {})
    plain = apply(RunConfig(), [f"method={m.name}"])
    rows = re.findall(r"^\| `(method\.[\w.]+)` \| `(.*?)` \|", table, re.M)
    assert len(rows) == len(table.splitlines()) - 2
    for path, value in rows:
        text = literal_eval(value) if value.startswith("'") else value
        table = literal_eval(value) if value.startswith(("{'", "{}")) else {"": text}  # each value is set by its name
        for name, one in table.items():
            assert apply(plain, [f"{path}{'.' if name else ''}{name}={one}"]).method == m, path


@pytest.mark.parametrize("m", built_in().values(), ids=lambda m: m.name)
def test_every_page_says_what_it_was_checked_against(m: Method) -> None:
    page = DOCS.method_page(m, built_in(), {})
    said = page.split("\n## Checked against\n")[1].split("\n## ")[0]
    assert CONFIDENCE[m.confidence][1:] in said and DOCS.arxiv_links(m.checked) in said and m.confidence
    mine = m.but(name="mine")
    assert DOCS.checked(mine) == "" and "Checked against" not in DOCS.method_page(mine, built_in(), {})


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
