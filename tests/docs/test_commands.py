"""Commands and settings that the pages show exist."""

import re
import shlex
from pathlib import Path

import pytest
from doc_blocks import DOCS, ROOT

from gruppo.cli import arguments, overrides
from gruppo.methods import built_in, method
from gruppo.stages import CHAINS
from gruppo.train.config import RunConfig

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md"), *DOCS.glob("methods/*.md")]


def commands() -> list[str]:
    """Every `gruppo …` line of a shell block, and every one that stands in backticks."""
    found: list[str] = []
    for page in PAGES:
        text = page.read_text()
        for block in re.findall(r"^```(?:sh|bash)\n(.*?)^```$", text, re.M | re.S):
            found += re.findall(r"^gruppo .*$", block, re.M)
        found += re.findall(r"`(gruppo [a-z][^`…]*)`", text)
    return sorted(dict.fromkeys(found))


@pytest.mark.parametrize("line", commands())
def test_command_is_understood(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    if "[" in line or words[0] not in ("train", "eval", "runs", "episodes", "compare", "doctor", "methods"):
        return
    args = arguments(words)
    known = [s for s in getattr(args, "settings", []) if "./" not in s]
    overrides.apply(RunConfig(), known)


def test_a_pretrained_model_is_never_trained_in_full_at_the_default_rate() -> None:
    """That of the built-in policies is ten times too large for it."""
    training = [line for line in commands() if line.startswith("gruppo train") and "model=smollm2" in line]
    assert len(training) > 5
    assert [line for line in training if "optim.lr=" not in line and "model.lora.rank=" not in line] == []


def settable() -> set[str]:
    """Every path, and those of a chain also without the occupant's name: method.objective.clip_high."""
    known = set(overrides.paths(RunConfig()))
    chains = "|".join(CHAINS)
    return known | {re.sub(rf"^(method\.(?:{chains}))\.\w+\.(\w+)$", r"\1.\2", p) for p in known}


def test_names_of_other_libraries_lead_to_settings_that_exist() -> None:
    section = (DOCS / "configuration.md").read_text().split("\n## Coming from")[1].split("\n## ")[0]
    rows = [row.split(" | ")[2] for row in section.splitlines() if row.startswith("| `")]
    assert len(rows) > 10
    for row in rows:
        path = re.match(r"`([\w.]+)(\+=)?(\w+)?", row)
        assert path is not None
        if path[2]:
            overrides.apply(RunConfig(), [f"{path[1]}+={path[3]}"])
        else:
            assert path[1] in settable(), row


def test_listed_methods_exist() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    listed = re.findall(r"^- `([a-z_0-9]+)@(\d+)`", changes, re.M)
    assert len(listed) > 30
    for name, version in listed:
        assert int(version) <= method(name).version, name
    bullets = re.split(r"^- ", changes, flags=re.M)
    for name, new in {(m.name, f"@{v}`") for m in built_in().values() for v in range(2, m.version + 1)}:
        assert any(re.search(rf"\b{name}\b", b) and new in b for b in bullets), f"{name}{new}: say what changed"


def test_make_targets_exist() -> None:
    rules = set(re.findall(r"^([a-z-]+):", Path(ROOT / "Makefile").read_text(), re.M))
    told = {t for page in PAGES for t in re.findall(r"^\| `make ([a-z-]+)|^make ([a-z-]+)", page.read_text(), re.M)}
    assert {a or b for a, b in told} <= rules
