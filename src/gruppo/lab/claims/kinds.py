"""What kind of thing a claim says, and what of each kind survives here: the first table of the board.

The kind stands in the claim's file (`kind = "variety"`). It is no part of its rule: it decides nothing.
"""

from collections.abc import Collection, Mapping
from typing import Any

KINDS = {
    "variance": "a better baseline or divisor makes the gradient less noisy, and learning better",
    "variety": "the policy keeps its entropy, or more different right answers",
    "stability": "stale samples, many updates of a batch or bad batches do less harm",
    "signal": "something is learned from wrong answers, equal groups or no labels at all",
    "hard prompts": "hints, experts, teachers or drafts teach what the policy does not solve by itself",
    "length": "answers become shorter, or cheaper to decode, and stay right",
    "credit": "the tokens or turns that decided are the ones that learn",
    "data": "better prompts, answers or batches are chosen to learn from",
    "agents": "several turns, tools or several agents are trained better",
}
COUNTED = (
    "A method survives if one of its claims of the kind holds, though another one may not; methods without a decided "
    "claim are not counted."
)
JUDGED = ("reproduced", "not reproduced")


def table(claims: Mapping[str, Any], verdicts: Mapping[str, str], exact: Collection[str]) -> str:
    """A row for each kind: how many of the methods that were judged have a claim that holds, and which claims.

    `exact` are the names of claims that were judged in an exact world.
    """
    head = "| kind | what is claimed | survives | holds | does not hold | undecided |\n|" + " --- |" * 6
    names = {n: f"*[{n}](#{n})*" if n in exact else f"[{n}](#{n})" for n in claims}
    rows = [_row(kind, {n: c for n, c in claims.items() if c.kind == kind}, verdicts, names) for kind in KINDS]
    small = "Names in *italics* were judged in an [exact world](exact_world.md), the others with a small model."
    return "\n".join([head, *rows]) + f"\n\n{COUNTED}\n{small}"


def _row(kind: str, mine: Mapping[str, Any], verdicts: Mapping[str, str], names: Mapping[str, str]) -> str:
    judged = {c.method for n, c in mine.items() if verdicts[n] in JUDGED}
    shown = {c.method for n, c in mine.items() if verdicts[n] == "reproduced"}
    columns = [", ".join(names[n] for n in mine if verdicts[n] == v) for v in JUDGED]
    rest: dict[str, int] = {}
    for n in mine:
        if verdicts[n] not in JUDGED:
            rest[verdicts[n]] = rest.get(verdicts[n], 0) + 1
    undecided = ", ".join(f"{count} {verdict}" for verdict, count in sorted(rest.items()))
    said = f"**{len(shown)} of {len(judged)}** methods" if judged else "—"
    return f"| {kind} | {KINDS[kind]} | {said} | {columns[0]} | {columns[1]} | {undecided} |"
