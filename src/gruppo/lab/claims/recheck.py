"""What follows from the values that a result stores is computed again; a result that says anything else is refused."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from typing import Any

from gruppo.lab.claims.claim import PILOT_SEEDS, Claim
from gruppo.lab.claims.gates import NO_REGIME, recomputed
from gruppo.lab.claims.sense import parts
from gruppo.lab.claims.verdict import of_values, together
from gruppo.train.estimates import mean_interval

FIRST = ("held_out", "entropy", "length", "reward")  # metrics whose curves every result has, if its runs had them
CURVES = (*FIRST, "right_entropy")
Said = Iterator[tuple[str, str]]  # (field, what is wrong with it)


def deviations(claim: Claim, found: Mapping[str, Any], pilots: Sequence[Mapping[str, Any]]) -> Said:
    """Every field of a result that does not follow from the rule, its own values and the stored pilots."""
    yield from _gates(claim, found, pilots)
    yield from _conditions(claim, found)
    yield from _plain(claim, found)
    yield from _curves(claim, found)


def _gates(claim: Claim, found: Mapping[str, Any], pilots: Sequence[Mapping[str, Any]]) -> Said:
    written = found.get("gates", [])
    holds = recomputed(claim, written)
    if holds is None:
        yield "gates", "are not those of the rule"
        return
    if holds != [g["holds"] for g in written]:
        yield "gates", f"hold {[g['holds'] for g in written]}, and by their own values {holds}"
    for i, g in enumerate(written):
        if g["seeds"] != list(PILOT_SEEDS) or len(g["values"]) != len(PILOT_SEEDS):
            yield f"gates[{i}].seeds", f"are {g['seeds']} for {len(g['values'])} values, and pilots have {_span()}"
        stored = stored_values(claim, g["arm"], g["measure"], pilots)
        if stored and not any(same(g["values"], values) for values in stored):
            yield f"gates[{i}].values", f"of {g['measure']} are in no stored pilot of these settings"


def stored_values(claim: Claim, arm: str, measure: str, pilots: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """The values of a measure in every stored pilot that ran an arm as the claim has it."""
    return [
        run["values"][measure]
        for pilot in pilots
        if pilot["settings"] == list(claim.settings) and pilot["seeds"] == list(PILOT_SEEDS)
        for run in pilot["runs"]
        if run["arm"] == arm and f"{run['text']} {run['setting']}".strip() == claim.arms[arm]
        if measure in run["values"]
    ]


def unstored(claim: Claim, gates: Sequence[Mapping[str, Any]], pilots: Sequence[Mapping[str, Any]]) -> bool:
    """Whether gates have values that no stored pilot has."""
    return not all(
        any(same(g["values"], values) for values in stored_values(claim, g["arm"], g["measure"], pilots)) for g in gates
    )


def _conditions(claim: Claim, found: Mapping[str, Any]) -> Said:
    """Of each condition its words, values, mean, interval and outcome; and the verdict of all."""
    opened = all(g["holds"] for g in found.get("gates", []))
    wanted = claim.conditions if opened else ()
    if len(found["conditions"]) != len(wanted):
        yield "conditions", f"are {len(found['conditions'])}, and by the rule and the gates they are {len(wanted)}"
        return
    seen: dict[tuple[str, str], Any] = {}
    now: list[str] = []
    early: list[str] = []  # by the first half of the seeds
    details: list[tuple[str, str]] = []
    for i, (written, c) in enumerate(zip(found["conditions"], wanted, strict=True)):
        arms = {"entrant": "entrant", "baseline": c.against}
        a, b = ([math.inf if v is None else v for v in written[arm]] for arm in arms)
        if {len(a), len(b)} != {len(found["seeds"])}:
            yield f"conditions[{i}]", f"has {len(a)} and {len(b)} values for {len(found['seeds'])} seeds"
            return
        try:
            judged = of_values(c, a, b)
            early.append(of_values(c, a[: claim.seeds], b[: claim.seeds]).holds)
        except ValueError as error:
            yield f"conditions[{i}]", str(error)
            return
        now.append(judged.holds)
        here = asdict(judged) | asdict(c)
        details += [
            (f"conditions[{i}].{k}", f"is {_get(written, k)!r}, and by the rule and the values it is {here[k]!r}")
            for k in here
            if k not in ("condition", "baseline", "entrant", "holds") and not same(_get(written, k), here[k])
        ]
        for field, arm in arms.items():
            if not same(seen.setdefault((c.measure, arm), written[field]), written[field]):
                details.append((f"conditions[{i}].{field}", f"differs from those of another condition on {c.measure}"))
    written = [c["holds"] for c in found["conditions"]]
    outcome = together(now) if opened else NO_REGIME
    if (found["verdict"], written) != (outcome, now):
        yield (
            "verdict",
            f"says {found['verdict']!r} ({', '.join(written)}); by its own values and the rule it is {outcome!r} "
            f"({', '.join(now)})",
        )
    yield from details
    yield from _seeds(claim, found, outcome, early)


def _get(written: Mapping[str, Any], name: str) -> Any:
    return written.get("against", "baseline") if name == "against" else written[name]  # some are older than placebos


def _seeds(claim: Claim, found: Mapping[str, Any], outcome: str, early: Sequence[str]) -> Said:
    """Those of the rule, and twice as many exactly where these leave it open."""
    counts = (0,) if outcome == NO_REGIME else (claim.seeds, 2 * claim.seeds)
    if found["seeds"] not in [list(range(n)) for n in counts]:
        yield "seeds", f"are {found['seeds']}, and by the rule 0 to {claim.seeds - 1}, or twice as many"
    elif len(found["seeds"]) == claim.seeds and outcome == "inconclusive":
        yield "seeds", f"are {claim.seeds}, and a verdict that these leave open is over twice as many"
    elif len(found["seeds"]) > claim.seeds and together(early) != "inconclusive":
        yield "seeds", f"are {len(found['seeds'])}, and the first {claim.seeds} had decided: {together(early)}"


def _plain(claim: Claim, found: Mapping[str, Any]) -> Said:
    for field, want in (("claim", claim.name), ("arms", claim.arms), ("settings", list(claim.settings))):
        if found[field] != want:
            yield field, f"is {found[field]!r}, and the file of the claim has {want!r}"
    if not re.fullmatch("[0-9a-f]{40}", found["commit"]) or not int(found["commit"], 16):
        yield "commit", f"is {found['commit']!r}, which is none"
    try:
        date.fromisoformat(found["date"])
    except ValueError:
        yield "date", f"is {found['date']!r}, which is none"
    if not 0 <= found["seconds"] < math.inf:
        yield "seconds", f"is {found['seconds']}, which no run takes"


def _curves(claim: Claim, found: Mapping[str, Any]) -> Said:
    """Curves are means over seeds, so their ends are those of the values that were judged."""
    arms = list(claim.arms) if found["conditions"] else []
    if sorted(found["curves"]) != sorted(arms):
        yield "curves", f"are of {list(found['curves'])}, and by the rule and the verdict of {arms}"
        return
    for arm, curves in found["curves"].items():
        for metric, c in curves.items():
            if metric not in CURVES or {len(c[k]) for k in ("mean", "low", "high")} != {len(c["step"])}:
                yield f"curves.{arm}.{metric}", "is no curve"
                return
    for i, c in enumerate(found["conditions"]):
        name, metric = parts(c["measure"])
        for field, arm in (("entrant", "entrant"), ("baseline", _get(c, "against"))):
            values = [math.inf if v is None else v for v in c[field]]
            curve = found["curves"][arm].get(metric)
            if curve is None and metric in FIRST and name in ("last", "mean"):
                yield f"curves.{arm}", f"has no {metric}, and condition {i} is on it"
            if curve and not curve.get("partly") and (said := _ends(c["measure"], curve, values)):
                yield f"curves.{arm}.{metric}", f"{said} of conditions[{i}].{field}"


def _ends(measure: str, curve: Mapping[str, Any], values: Sequence[float]) -> str:
    """How a curve, rounded to five digits, differs from the mean and the interval of the values; "" if it does not."""
    name, _ = parts(measure)
    count = measure.rstrip(") ").split(",")[1:]
    if name not in ("last", "mean"):
        return ""
    of = mean_interval(values)
    steps = curve["mean"][-(1 if name == "last" else int(float(count[0])) if count else 0) :]
    if not same(sum(steps) / len(steps), of.mean, 1.1e-5):
        return f"ends at {sum(steps) / len(steps):.5f}, and {of.mean:.5f} is the mean"
    if name == "last" and not same([curve[k][-1] for k in ("low", "high")], [of.low, of.high], 1.1e-5):
        return "has another interval than the values"
    return ""


def same(written: Any, now: Any, off: float = 1e-9) -> bool:
    """Equal up to rounding; JSON has null for what is not finite."""
    if isinstance(now, list | tuple):
        return len(written) == len(now) and all(same(w, n, off) for w, n in zip(written, now, strict=True))
    if isinstance(now, str):
        return written == now
    finite = [x is not None and math.isfinite(x) for x in (written, now)]
    return finite[0] == finite[1] and (not finite[0] or math.isclose(written, now, rel_tol=1e-7, abs_tol=off))


def _span() -> str:
    return f"{PILOT_SEEDS[0]} to {PILOT_SEEDS[-1]}"
