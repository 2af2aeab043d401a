"""The board as a page: tables of verdicts, and for each claim its rule, its figures, its picture and its pilots."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gruppo.lab.claims import again, board, kinds
from gruppo.lab.claims.claim import Claim, Condition
from gruppo.lab.claims.gates import NO_REGIME, gates_of
from gruppo.lab.claims.in_tables import in_exact_world
from gruppo.lab.claims.pictures import ARMS

DRAFT = "a draft: its settings are not chosen yet"
ORDER = ("reproduced", "not reproduced", "inconclusive", NO_REGIME, "not run")
KINDS = {
    "higher": "{measure}, {entrant} minus {baseline}, is at least {size}, and its interval is above 0",
    "lower": "{measure}, {baseline} minus {entrant}, is at least {size}, and its interval is above 0",
    "not_worse": "{measure} of {entrant} is not worse than that of {baseline} by {size}",
    "at_most": "{measure} of {entrant} is at most {size}, the upper end of its interval too",
}


def first(folder: Path, claims: Mapping[str, Claim]) -> str:
    """What stands at the top of the page: how many claims there are, and a small table by kind."""
    verdicts = board.verdicts(folder, claims)
    count = f"{len(claims)} claims about {len({c.method for c in claims.values()})} methods: {_counts(verdicts)}."
    return f"{count} By method and kind of claim:\n\n{kinds.summary(claims, verdicts, _exact(claims))}\n"


def whole(folder: Path, claims: Mapping[str, Claim]) -> str:
    """The board: the claims by kind, those judged again, all of them, then a section for each claim."""
    found = {name: board.load(folder, claim) for name, claim in claims.items()}
    verdicts = board.verdicts(folder, claims)
    names = sorted(claims, key=lambda n: (ORDER.index(verdicts[n]), n))
    head = "| claim | verdict | seeds | figures (baseline → method) |\n| --- | --- | --- | --- |"
    rows = [
        f"| [{n}](#{n}) | {verdicts[n]} | {len((found[n] or {}).get('seeds', []))} | "
        f"{_short(found[n]) or ('' if claims[n].ready else DRAFT)} |"
        for n in names
    ]
    parts = ["## Claims by kind", kinds.lists(claims, verdicts, _exact(claims))]
    parts += ["## Judged again", again.table(claims, verdicts)]
    parts += ["## All claims", f"{_counts(verdicts)}.", "\n".join([head, *rows])]
    return "\n\n".join([*parts, *(of(folder, claims[n]) for n in names)]) + "\n"


def _counts(verdicts: Mapping[str, str]) -> str:
    return ", ".join(f"{list(verdicts.values()).count(v)} {v}" for v in ORDER if v in verdicts.values())


def _exact(claims: Mapping[str, Claim]) -> list[str]:
    return [n for n, c in claims.items() if in_exact_world(c)]


def of(folder: Path, claim: Claim) -> str:
    """The section of a claim, with its result and its stored pilots."""
    return section(claim, board.load(folder, claim), board.pilots_of(folder, claim.name))


def section(claim: Claim, result: Mapping[str, Any] | None, stored: Sequence[Mapping[str, Any]] = ()) -> str:
    arms = claim.arms
    parts = [
        f"## {claim.name}",
        claim.claim,
        f"Baseline `{arms['baseline']}`, method `{arms['entrant']}`; both with `{' '.join(claim.settings)}`.",
        "Counts as reproduced when\n\n" + "\n".join(f"- {in_words(c, 'method', c.against)}" for c in claim.conditions),
    ]
    if claim.placebo:
        parts[2] += f" Placebo `{arms['placebo']}`."
    if gates_of(claim):
        parts.append(_gates(claim, result))
    if result and result["verdict"] == NO_REGIME:
        parts.append(
            f"**No regime found** ({result['date']}, rule {result['rule']} of commit {result['commit'][:10]}): a gate "
            "did not hold, so the seeds of the verdict were not run."
        )
        parts.append(f"![what the gates found on pilot seeds](claims/{claim.name}.png)")
    elif result:
        machine = board.machine_in_words(result)
        parts.append(
            f"**{result['verdict'][0].upper()}{result['verdict'][1:]}**: {len(result['seeds'])} seeds, "
            f"{result['date']}, rule {result['rule']} of commit {result['commit'][:10]}, {result['seconds']:.0f} "
            f"seconds of runs{machine and f' ({machine})'}.\n\n" + "\n".join(map(_figures, result["conditions"]))
        )
        parts.append(f"![mean and 95 % band over seeds](claims/{claim.name}.png)")
    else:
        parts.append("**Not run yet.**" if claim.ready else f"**Not run yet**: {DRAFT}.")
    parts += [claim.note] if claim.note else []
    parts += [f"Without a sweep: {claim.no_sweep}"] if claim.no_sweep else []
    parts += [f"Not the best point of the sweep: {claim.not_best}"] if claim.not_best else []
    if stored:
        parts.append("Stored pilots:\n\n" + "\n".join(_stored(p) for p in stored))
    if claim.pilots:
        parts.append("Pilots (seeds 100 to 104):\n\n" + "\n".join(_pilot(p) for p in claim.pilots))
    return "\n\n".join(parts)


def _gates(claim: Claim, result: Mapping[str, Any] | None) -> str:
    """What pilot seeds had to show, and what they showed."""
    called = {"gate": "the baseline has the disease", "mechanism": "the method's lever moves"}
    found = (result or {}).get("gates", [])
    lines: list[str] = []
    for i, (what, g) in enumerate(gates_of(claim)):
        said = f"- {called[what]}: `{g.measure}` is {g.kind.replace('_', ' ')} {g.size:g}"
        shown = f"; found {_mean(found[i]['values'])}: **{'yes' if found[i]['holds'] else 'no'}**" if found else ""
        lines.append(said + shown)
    return "Judged only if, on pilot seeds,\n\n" + "\n".join(lines)


def in_words(c: Condition, entrant: str, baseline: str) -> str:
    size = f"{c.size:.0%}" if c.of == "ratio" else f"{c.size:g}"
    return KINDS[c.kind].format(entrant=entrant, baseline=baseline, measure=f"`{c.measure}`", size=size)


def _short(result: Mapping[str, Any] | None) -> str:
    if not result:
        return ""
    figures = (f"`{c['measure']}` {_mean(c['baseline'])} → {_mean(c['entrant'])}" for c in result["conditions"])
    return "; ".join(dict.fromkeys(figures))  # two conditions may be on one measure


def _figures(c: Mapping[str, Any]) -> str:
    said = f"- `{c['measure']}`: {c.get('against', 'baseline')} {_mean(c['baseline'])}, method {_mean(c['entrant'])}; "
    if c["mean"] is None:
        return said + f"{c['how']}: **{c['holds']}**"
    of = "log ratio" if c["of"] == "ratio" else "value" if c["kind"] == "at_most" else "difference"
    return said + f"{of} {c['mean']:+.4f} ({c['low']:+.4f} to {c['high']:+.4f}), {c['how']}: **{c['holds']}**"


def _stored(pilot: Mapping[str, Any]) -> str:
    """A pilot that the program stored: the mean of each measure for each setting."""
    by = {
        arm: "; ".join(
            f"{r['setting'] or 'as it is'}: " + ", ".join(f"`{m}` {_mean(v)}" for m, v in r["values"].items())
            for r in pilot["runs"]
            if r["arm"] == arm
        )
        for arm in dict.fromkeys(r["arm"] for r in pilot["runs"])
    }
    return f"- {pilot['date']}, seeds {pilot['seeds'][0]} to {pilot['seeds'][-1]}. " + " ".join(
        f"{ARMS[arm]}: {text}." for arm, text in by.items()
    )


def _pilot(pilot: Mapping[str, Any]) -> str:
    called = {"what": "", "entrant": "method: "}
    return "- " + "; ".join(f"{called.get(k, f'{k}: ')}{v}" for k, v in pilot.items())


def _mean(values: Sequence[float | None]) -> str:
    known = [v for v in values if v is not None and math.isfinite(v)]
    if len(known) < len(values):
        return f"never in {len(values) - len(known)} of {len(values)}"
    return f"{sum(known) / len(known):.4g}" if known else "—"
