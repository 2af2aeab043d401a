"""The summary of the board by kind of claim: every claim is in it, and it counts what the verdicts say."""

from pathlib import Path

import pytest

from gruppo.lab.claims import board, page
from gruppo.lab.claims.claim import Claim, Condition, all_claims, read
from gruppo.lab.claims.gates import NO_REGIME, Gate
from gruppo.lab.claims.kinds import KINDS, SAID, lists, outcomes, summary

FOLDER = Path(__file__).parents[2] / "claims"
CONDITION = (Condition("last(x)", "higher", 0.05),)


def claim(name: str, method: str, kind: str, gated: bool = False) -> Claim:
    gates = (Gate("drop(x)", "at_least", 0.2),) if gated else ()
    return Claim(name, method, "c", "a", "b", (), CONDITION, kind=kind, gates=gates)


def board_of(**verdicts: str) -> tuple[dict[str, Claim], dict[str, str]]:
    """Claims about length by one method, m; those whose name begins with g have gates."""
    return {n: claim(n, "m", "length", n.startswith("g")) for n in verdicts}, verdicts


def test_every_claim_of_the_board_has_a_kind() -> None:
    found = all_claims(FOLDER)
    assert [n for n, c in found.items() if not c.kind] == []
    first = page.first(FOLDER, found)
    rows = [line for line in first.splitlines() if line.startswith("| [")]
    assert [row.split("](")[0].removeprefix("| [") for row in rows] == list(KINDS)
    assert len(first.split()) < 400  # it is to be understood in a minute
    named = page.whole(FOLDER, found).split("## Judged again")[0]
    assert all(f"[{n}](#{n})" in named for n in found) and named.count("](#") == len(found)
    assert all(f"(#{kind.replace(' ', '-')})" in first and f"\n### {kind}\n" in named for kind in KINDS)


def test_the_kind_is_no_part_of_the_rule() -> None:
    assert claim("a", "a", "length").rule == claim("a", "a", "").rule


def test_methods_are_counted_once() -> None:
    """Two claims of one method, one of which holds; a method that does not; and what nobody knows."""
    claims = {n: claim(n, m, "length") for n, m in (("a", "m"), ("a_exact", "m"), ("b", "b"), ("c", "c"), ("d", "d"))}
    verdicts = {"a": "not reproduced", "a_exact": "reproduced", "b": "not reproduced"}
    verdicts |= {"c": "not run", "d": NO_REGIME}
    row = next(line for line in summary(claims, verdicts, ["a_exact"]).splitlines() if line.startswith("| [length]"))
    assert row.endswith("| 0 | 1 | 1 | 2 |")
    named = lists(claims, verdicts, ["a_exact"])
    assert "- holds, without gates: *[a_exact](#a_exact)*\n" in named
    assert "- does not hold: [a](#a), [b](#b)\n" in named
    assert "- undecided: [c](#c) (not run), [d](#d) (no regime found)" in named and "replaced" not in named


@pytest.mark.parametrize(
    "verdicts, said, replaced",
    [
        ({"a": "reproduced"}, SAID[1], ()),
        ({"a": "reproduced", "g": "not reproduced"}, SAID[2], ("a",)),
        ({"a": "not reproduced", "g": "reproduced"}, SAID[0], ("a",)),
        ({"a": "reproduced", "g": NO_REGIME}, SAID[3], ("a",)),
        ({"a": "reproduced", "g": "inconclusive", "g2": "reproduced"}, SAID[0], ("a",)),
        ({"a": "reproduced", "g": "not run"}, SAID[1], ()),
        ({"a": "reproduced", "b": "not run", "g": "not reproduced"}, SAID[2], ("a",)),
    ],
)
def test_verdicts_with_gates_replace_older_ones(verdicts: dict[str, str], said: str, replaced: tuple[str]) -> None:
    [found] = outcomes(*board_of(**verdicts))
    assert (found.said, found.replaced) == (said, replaced)
    assert sorted((*found.counts, *found.replaced)) == sorted(verdicts)


def test_only_verdicts_on_the_same_kind_of_claim_are_replaced() -> None:
    claims = {"a": claim("a", "m", "length"), "g": claim("g", "m", "variety", gated=True)}
    found = outcomes(claims, {"a": "reproduced", "g": "not reproduced"})
    assert [(o.kind, o.said, o.replaced) for o in found] == [("variety", SAID[2], ()), ("length", SAID[1], ())]


def test_imitation_that_was_missing_counts_against_those_that_had_held_without_it() -> None:
    claims = all_claims(FOLDER)
    found = {(o.method, o.kind): o.said for o in outcomes(claims, board.verdicts(FOLDER, claims))}
    assert [found[m, "hard prompts"] for m in ("rl_plus", "seele", "kdrl")] == [SAID[2], SAID[2], SAID[0]]
    assert [found["forking_tokens", "credit"], found["ssb", "data"]] == [SAID[2]] * 2


def test_a_kind_that_is_none_is_refused(tmp_path: Path) -> None:
    text = 'kind = "lenght"\nclaim = "x"\nbaseline = "grpo"\nentrant = "rloo"\n'
    text += '[[condition]]\nmeasure = "last(x)"\nkind = "higher"\nsize = 0.1\n'
    (tmp_path / "b.toml").write_text(text)
    with pytest.raises(ValueError, match=r"kind = 'lenght' \(nearest: length\b.* Use one of variance"):
        read(tmp_path / "b.toml")
