"""What kind of thing a claim says, and what of each kind survives here: the first table of the board.

The kind stands in the claim's file (`kind = "variety"`). It is no part of its rule: it decides nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gruppo.lab.claims.gates import gates_of

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
JUDGED = ("reproduced", "not reproduced")
SAID = ("survives, with gates", "survives, without gates", "does not survive", "undecided")
COUNTED = (
    "The numbers are methods. A method survives if a claim of the kind holds for it. Where a method was judged with "
    "*gates* (the baseline was first shown to have the trouble that the method cures, or at least something to gain), "
    "only those verdicts count, and its older ones without gates do not."
)


@dataclass(frozen=True)
class Outcome:
    """What the board says of a method, as far as claims of one kind go."""

    method: str
    kind: str
    said: str  # one of SAID
    counts: tuple[str, ...]  # the claims that decide
    replaced: tuple[str, ...]  # older ones without gates, where there are verdicts with gates


def outcomes(claims: Mapping[str, Any], verdicts: Mapping[str, str]) -> list[Outcome]:
    """One for each method and kind of claim."""
    return [
        _outcome(method, kind, {n: c for n, c in claims.items() if (c.method, c.kind) == (method, kind)}, verdicts)
        for kind in KINDS
        for method in sorted({c.method for c in claims.values() if c.kind == kind})
    ]


def _outcome(method: str, kind: str, mine: Mapping[str, Any], verdicts: Mapping[str, str]) -> Outcome:
    waiting = [n for n in mine if verdicts[n] == "not run"]
    gated = [n for n in mine if gates_of(mine[n]) and n not in waiting]
    counts = [*gated, *waiting] if gated else list(mine)
    found = {verdicts[n] for n in counts}
    survives = SAID[0] if gated else SAID[1]
    said = survives if JUDGED[0] in found else SAID[2] if JUDGED[1] in found else SAID[3]
    return Outcome(method, kind, said, tuple(counts), tuple(n for n in mine if n not in counts))


def totals(found: Sequence[Outcome]) -> list[int]:
    """How many outcomes there are of each of SAID."""
    return [sum(o.said == said for o in found) for said in SAID]


def summary(claims: Mapping[str, Any], verdicts: Mapping[str, str], exact: Collection[str]) -> str:
    """The first table: a row for each kind, in numbers of methods.

    `exact` are the names of claims that were judged in an exact world.
    """
    found = outcomes(claims, verdicts)
    head = f"| kind | what is claimed | {' | '.join(SAID)} |\n| --- | --- |{' ---: |' * len(SAID)}"
    rows = [
        f"| [{kind}](#{kind.replace(' ', '-')}) | {text} | {_cells([o for o in found if o.kind == kind])} |"
        for kind, text in KINDS.items()
    ]
    rows.append(f"| **all** | | {_cells(found)} |")
    several = sorted({o.method for o in found if sum(p.method == o.method for p in found) > 1})
    said = [COUNTED, _where(found, verdicts, exact)]
    said += [f"Methods with claims of two kinds count in both: {', '.join(several)}."] if several else []
    return "\n".join([head, *rows]) + "\n\n" + "\n".join(said)


def _cells(found: Sequence[Outcome]) -> str:
    return " | ".join(map(str, totals(found)))


def _where(found: Sequence[Outcome], verdicts: Mapping[str, str], exact: Collection[str]) -> str:
    """In which world the methods that survive do so."""
    gated, plain = ([o for o in found if o.said == said] for said in SAID[:2])
    held = {n for n in exact if verdicts[n] == JUDGED[0]}
    tables = [sum(not held.isdisjoint(o.counts) for o in mine) for mine in (gated, plain)]
    return (
        f"Of those that survive with gates, {_of(tables[0], gated)} in an [exact world](exact_world.md), where the "
        f"policy is a table; of those without gates, {_of(tables[1], plain)}. The others do so with a small model."
    )


def _of(count: int, found: Sequence[Outcome]) -> str:
    word = {0: "none", len(found): "all"}.get(count, str(count))
    return f"{word} {'does' if word in ('none', '1') else 'do'} so"


def lists(claims: Mapping[str, Any], verdicts: Mapping[str, str], exact: Collection[str]) -> str:
    """The claims of each kind by name, under a heading each."""
    found = outcomes(claims, verdicts)
    names = {n: f"*[{n}](#{n})*" if n in exact else f"[{n}](#{n})" for n in claims}
    small = "Names in *italics* were judged in an [exact world](exact_world.md), the others with a small model."
    parts = [small]
    for kind, text in KINDS.items():
        mine = [o for o in found if o.kind == kind]
        lines = [f"- {said}: {', '.join(of)}" for said, of in _named(mine, claims, verdicts, names).items() if of]
        parts.append(f"### {kind}\n\n{text[0].upper()}{text[1:]}.\n\n" + "\n".join(lines) if lines else "")
    return "\n\n".join(p for p in parts if p)


def _named(
    found: Sequence[Outcome], claims: Mapping[str, Any], verdicts: Mapping[str, str], names: Mapping[str, str]
) -> dict[str, list[str]]:
    counts = sorted(n for o in found for n in o.counts)
    held = [n for n in counts if verdicts[n] == JUDGED[0]]
    return {
        "holds, with gates": [names[n] for n in held if gates_of(claims[n])],
        "holds, without gates": [names[n] for n in held if not gates_of(claims[n])],
        "does not hold": [names[n] for n in counts if verdicts[n] == JUDGED[1]],
        "undecided": [f"{names[n]} ({verdicts[n]})" for n in counts if verdicts[n] not in JUDGED],
        "replaced by a verdict with gates": [
            f"{names[n]} ({verdicts[n]})" for n in sorted(n for o in found for n in o.replaced)
        ],
    }
