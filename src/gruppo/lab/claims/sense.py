"""Rules that cannot fail or cannot hold, as far as a file shows it. They are refused before anything is run."""

import re
from collections.abc import Iterator
from typing import Any

from gruppo.lab.compare.stages import stages_of

FROM_0 = ("drop", "off", "apart", "spike", "steps_to", "spent_to")  # measures that are 0 or more
TO_1 = re.compile(r"held_out(/pass@\d+)?|accuracy|kept|dead_groups|clip_fraction|adv_live|pass@\d+|falls")  # shares
KEEPS = ("last", "mean", "best", "least", "drop")  # measures that stay within the range of their metric
SET_BY = {  # metrics that a setting bounds
    "longest": ("sampling.max_tokens", "method.rollout.window_tokens"),
    "length": ("sampling.max_tokens", "method.rollout.window_tokens"),
}
LEAST_SWEEP = 4
DEAD = 0.02  # the share of tokens with an advantage, at most, of a baseline that learns nothing


def refuse_senseless(claim: Any) -> None:
    """Raise for the first rule of a claim that is decided before its runs."""
    for said in (*_conditions(claim), *_gates(claim), *_placebo(claim), *_sweep(claim)):
        raise ValueError(said)


def parts(text: str) -> tuple[str, str]:
    """The measure and its metric: ("last", "held_out") of "last(held_out)"."""
    name, _, rest = text.strip().partition("(")
    return name, rest.rstrip(")").split(",")[0].strip()


def is_share(text: str) -> bool:
    """Whether a measure lies between 0 and 1."""
    name, metric = parts(text)
    return name in KEEPS and bool(TO_1.fullmatch(metric))


def is_positive(text: str) -> bool:
    return is_share(text) or parts(text)[0] in FROM_0


def _conditions(claim: Any) -> Iterator[str]:
    for c in claim.conditions:
        said = f"condition {c.kind} {c.size:g} on {c.measure}"
        if is_share(c.measure) and c.of == "difference" and c.size >= 1:
            if c.kind in ("higher", "lower"):
                yield f"{said}: shares differ by less than 1, so it cannot hold. Give a smaller size."
            yield f"{said}: no share is so far off, so it cannot fail. Give a smaller size."
        if c.kind == "lower" and c.of == "difference" and is_positive(c.measure) and not _shown(claim, c):
            yield (
                f"{said}: it is never below 0, so the baseline must have at least {c.size:g} of it, or the condition "
                f"cannot hold. Add a [[gate]] with measure = {c.measure!r}, kind = 'at_least' and size = {c.size:g} or "
                "more."
            )
        if c.kind in ("lower", "at_most") and (setting := _decided(claim, c)):
            yield (
                f"{said}: {setting} of the entrant bounds {parts(c.measure)[1]}, so the setting decides and no run "
                "does. Measure what the setting is meant to bring about."
            )


def _shown(claim: Any, c: Any) -> bool:
    """Whether a gate says that the baseline has as much as is to be taken away, or the measure is a plain rate."""
    if parts(c.measure)[0] not in FROM_0[:3]:  # of a rate or a number of steps, all can be taken away
        return True
    return any(g.measure == c.measure and g.kind == "at_least" and g.size >= c.size for g in claim.gates)


def _decided(claim: Any, c: Any) -> str:
    if parts(c.measure)[0] not in KEEPS:  # a sum over steps is not bounded by what a step may have
        return ""
    words = stages_of(claim.entrant)[-1]
    names = SET_BY.get(parts(c.measure)[1], ())
    return next((w for w in words for name in names if w.startswith(f"{name}=")), "")


def _gates(claim: Any) -> Iterator[str]:
    for g in (*claim.gates, *claim.mechanisms):
        said = f"gate {g.kind} {g.size:g} on {g.measure}"
        if is_positive(g.measure) and g.kind == "at_least" and g.size <= 0:
            yield f"{said}: it is never below 0, so the gate cannot fail. Give a size above 0."
        if is_positive(g.measure) and g.kind == "at_most" and g.size < 0:
            yield f"{said}: it is never below 0, so the gate cannot hold. Give a size of 0 or more."
        if is_share(g.measure) and g.kind == "at_least" and g.size > 1:
            yield f"{said}: a share is at most 1, so the gate cannot hold. Give a size up to 1."
        if is_share(g.measure) and g.kind == "at_most" and g.size >= 1:
            yield f"{said}: a share is at most 1, so the gate cannot fail. Give a size below 1."


def _placebo(claim: Any) -> Iterator[str]:
    against = [c for c in claim.conditions if c.against == "placebo"]
    if against and not claim.placebo:
        yield "a condition is against the placebo, and the file has none. Give placebo = 'METHOD SETTINGS'."
    if claim.placebo and not against:
        yield "placebo has no effect: no condition is against it. Add one with against = 'placebo'."
    if claim.placebo and claim.placebo in (claim.baseline, claim.entrant):
        yield "the placebo is one of the other arms, so it would be compared with itself. Give a third one."


def _sweep(claim: Any) -> Iterator[str]:
    """Of claims with gates, which are younger than the rule: a best point at the edge may not be the best there is."""
    if not claim.gates or not claim.sweep:
        return
    if twice := sorted({point for point in claim.sweep if claim.sweep.count(point) > 1}):
        yield f"sweep has {twice[0]} twice, so it has fewer points than it seems. Give each once."
    if len(claim.sweep) < LEAST_SWEEP:
        yield f"sweep has {len(claim.sweep)} points, so its best may be at its edge. Give at least {LEAST_SWEEP}."
    if len({frozenset(word.partition("=")[0] for word in point.split()) for point in claim.sweep}) > 1:
        yield "the points of sweep set different things, so they have no order and no edge. Sweep one thing."
    dead = any(g.measure == "mean(adv_live)" and g.kind == "at_most" and g.size <= DEAD for g in claim.gates)
    for arm, text in (("baseline", claim.baseline), ("entrant", claim.entrant)):
        if not claim.swept(text) and not (arm == "baseline" and dead):
            yield (
                f"the {arm} sets {claim.sweep[0].partition('=')[0]} itself, so that it has no sweep, and the other arm "
                "has. Take it out; or, for a baseline without any gradient, say so by a [[gate]] with measure = "
                f"'mean(adv_live)', kind = 'at_most' and size = {DEAD:g}."
            )
    for arm, setting in claim.chosen.items():
        points = claim.swept(getattr(claim, arm))
        if setting not in points:
            yield (
                f"[chosen] of {arm} is {setting}, which is no point of its sweep. Use one of "
                f"{', '.join(points) or 'none: that arm sets what is swept itself'}."
            )
        if setting in (claim.sweep[0], claim.sweep[-1]):
            yield (
                f"[chosen] of {arm} is {setting}, at the edge of the sweep: a better one may lie beyond. Add points "
                "there, and run --pilot again."
            )
