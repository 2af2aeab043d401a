"""The summary of the board by kind of claim: every claim is in it, and it counts what the verdicts say."""

from pathlib import Path

import pytest

from gruppo.lab.claims import page
from gruppo.lab.claims.claim import Claim, Condition, all_claims, read
from gruppo.lab.claims.kinds import KINDS, table

FOLDER = Path(__file__).parents[2] / "claims"
CONDITION = (Condition("last(x)", "higher", 0.05),)


def claim(name: str, method: str, kind: str) -> Claim:
    return Claim(name, method, "c", "a", "b", (), CONDITION, kind=kind)


def test_every_claim_of_the_board_has_a_kind() -> None:
    found = all_claims(FOLDER)
    assert [n for n, c in found.items() if not c.kind] == []
    text = page.whole(FOLDER, found)
    summary = text.split("## Judged again")[0]
    rows = [line for line in summary.splitlines() if line.startswith("| ")][2:]
    assert [row.split("|")[1].strip() for row in rows] == list(KINDS)
    assert sum(row.count("](#") for row in rows) == text.count("**Reproduced**") + text.count("**Not reproduced**")


def test_the_kind_is_no_part_of_the_rule() -> None:
    assert claim("a", "a", "length").rule == claim("a", "a", "").rule


def test_methods_are_counted_once() -> None:
    """Two claims of one method, one of which holds; a method that does not; and what nobody knows."""
    claims = {n: claim(n, m, "length") for n, m in (("a", "m"), ("a_exact", "m"), ("b", "b"), ("c", "c"), ("d", "d"))}
    verdicts = {"a": "not reproduced", "a_exact": "reproduced", "b": "not reproduced"}
    verdicts |= {"c": "not run", "d": "no regime found"}
    row = next(line for line in table(claims, verdicts, ["a_exact"]).splitlines() if line.startswith("| length"))
    assert "**1 of 2** methods | *[a_exact](#a_exact)* | [a](#a), [b](#b) | 1 no regime found, 1 not run |" in row


def test_a_kind_that_is_none_is_refused(tmp_path: Path) -> None:
    text = 'kind = "lenght"\nclaim = "x"\nbaseline = "grpo"\nentrant = "rloo"\n'
    text += '[[condition]]\nmeasure = "last(x)"\nkind = "higher"\nsize = 0.1\n'
    (tmp_path / "b.toml").write_text(text)
    with pytest.raises(ValueError, match=r"kind = 'lenght' \(nearest: length\b.* Use one of variance"):
        read(tmp_path / "b.toml")
