"""The list of survivors: an entry means one line of code, a rule one kind of mutation, and neither more."""

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mutmut", reason="only with the extra `mutants`")
pytest.importorskip("coverage", reason="only with the extra `mutants`")
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "mutants"))

import explained
from making import PACKAGE, PARTS, Mutant, files, mutants


def some(file: str = "pieces/advantage.py") -> list[Mutant]:
    return mutants(PACKAGE / file)


def toml(kind: str, **fields: Any) -> str:
    fields = {"reason": "equivalent", "why": "because", **fields}
    return f"[[{kind}]]\n" + "".join(f"{k} = '''{v}'''\n" for k, v in fields.items())


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        ("f(x, device=d)", "f(x, )", "device=d"),
        ("f(x, strict=True, y=1)", "f(x, y=1)", "strict=True"),
        ("f(x)", "f()", "x"),
        ("a + b", "a - b", ""),
        ("0.5", "1.5", ""),
        ("f(0, 0)", "f(0)", "0"),
        ("f(dim=1, dtype=x)", "f(dtype=x)", "dim=1"),
        ("G(low=0.2, low_too=3)", "G(low=0.2, )", "low_too=3"),
    ],
)
def test_what_was_left_out(before: str, after: str, lost: str) -> None:
    assert explained.lost(before, after) == lost


def test_an_entry_means_its_line_alone() -> None:
    first = some()[0]
    row = {k: v for k, v in explained.seen(first).items() if k != "lost"}
    [entry] = explained.entries(toml("survivor", **row))
    assert entry.covers(first)
    for k in ("file", "text", "before", "after"):
        [other] = explained.entries(toml("survivor", **{**row, k: "x"}))
        assert not other.covers(first), k


def test_a_rule_means_whole_fields() -> None:
    found = some()
    [rule] = explained.entries(toml("rule", files="pieces/*.py", lost="device=.*"))
    mine = [m for m in found if rule.covers(m)]
    assert mine and all("device=" in m.before and "device=" not in m.after for m in mine)
    [part] = explained.entries(toml("rule", lost="device"))
    assert not any(part.covers(m) for m in found), "a part of the text is not the text"
    [elsewhere] = explained.entries(toml("rule", files="data/*.py", lost="device=.*"))
    assert not any(elsewhere.covers(m) for m in found)


def test_each_survivor_has_one_explanation_and_idle_ones_are_named() -> None:
    found = some()
    table = explained.entries(toml("rule", lost="device=.*") + toml("rule", files="pieces/*", lost="never said"))
    covered, rest = explained.sort(found, table)
    assert sum(map(len, covered.values())) + len(rest) == len(found)
    everywhere = {p.relative_to(PACKAGE).as_posix() for p in files(list(PARTS))}
    assert explained.idle(covered, everywhere) == [table[1]]
    assert explained.idle(covered, {"pieces/advantage.py"}) == [], "not all of its files were read"


@pytest.mark.parametrize(
    "wrong",
    [
        toml("rule", files="*"),
        toml("rule", lost="x", reason="nobody knows"),
        toml("rule", lost="x", line="3"),
        toml("survivor", file="a", before="b", after="c"),
    ],
)
def test_what_says_too_little_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"survivors\.toml: .* cannot be used"):
        explained.entries(wrong)


def test_the_list_can_be_read() -> None:
    """Whether each entry still explains somebody is said by `make mutants`."""
    assert all(e.said["why"] for e in explained.entries())
