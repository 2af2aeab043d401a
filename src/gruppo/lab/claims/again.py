"""Claims that were judged a second time, with gates: what was found at first, and what now."""

from collections.abc import Mapping

from gruppo.lab.claims.claim import Claim
from gruppo.lab.claims.gates import gates_of
from gruppo.lab.claims.kinds import JUDGED

HEAD = "| method | at first | with gates |\n| --- | --- | --- |"
WHY = (
    "A miniature that cannot show the disease says nothing about the cure, so claims of the first board are judged "
    "again where the baseline has first shown it. The first verdicts stay."
)


def table(claims: Mapping[str, Claim], verdicts: Mapping[str, str]) -> str:
    """A row for each method with a verdict of both kinds, or with a rule for the second."""
    rows: list[str] = []
    decided = 0
    for method in sorted({c.method for c in claims.values()}):
        mine = [n for n in sorted(claims) if claims[n].method == method]
        gated = [n for n in mine if gates_of(claims[n])]
        first = [n for n in mine if n not in gated and verdicts[n] != "not run"]
        if first and gated:
            rows.append(f"| {method} | {_said(first, verdicts)} | {_said(gated, verdicts)} |")
            decided += any(verdicts[n] in JUDGED for n in gated)
    count = f"{decided} of {len(rows)} methods are decided with their gates passed"
    rest = "the others are open, found no regime, or are not run"
    return f"{WHY} {count}; {rest}.\n\n" + "\n".join([HEAD, *rows])


def _said(names: list[str], verdicts: Mapping[str, str]) -> str:
    return "; ".join(f"[{n}](#{n}) {verdicts[n]}" for n in names)
