"""`gruppo lab METHOD… --train "steps=500 seeds=20"`: methods in an exact world, side by side."""

import shlex
import sys
from ast import literal_eval
from collections.abc import Sequence
from typing import Any

import numpy as np

from gruppo.cli.commands import print_json
from gruppo.lab.exact.groups import Unlike
from gruppo.lab.tabular.measure import MEASURES
from gruppo.lab.tabular.train import WORDS, Trained, train_exact
from gruppo.stages import Method
from gruppo.train.estimates import mean_interval


def train(methods: Sequence[Method], text: str, as_json: bool) -> int:
    changes = settings(text)
    seeds = changes.pop("seeds", 10)
    done: list[Trained] = []
    undone: dict[str, str] = {}
    for m in methods:
        if not as_json:
            print(f"{m.name} …", file=sys.stderr, flush=True)
        try:
            done.append(train_exact(m, seeds=seeds, **changes))
        except Unlike as said:  # the others can be done all the same
            undone[m.name] = str(said)
    if not done:
        raise ValueError(
            "; ".join(f"{name} cannot be trained in an exact world: {why}" for name, why in undone.items())
        )
    if as_json:
        print_json({"trained": [_table(t) for t in done], "not_done": undone})
    else:
        print("\n".join([in_words(done), *(f"{name}: not done: {why}" for name, why in undone.items())]))
    return 0


def settings(text: str) -> dict[str, Any]:
    """{"steps": 500} of "steps=500"."""
    out: dict[str, Any] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f'--train {text!r}: {error}. Write NAME=VALUE, such as "steps=500 seeds=20".') from None
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise ValueError(
                f'--train {text!r}: {word!r} is no setting. Write NAME=VALUE, such as "steps=500 seeds=20".'
            )
        try:
            out[name] = literal_eval(value)
        except (ValueError, SyntaxError):
            out[name] = float("inf") if value == "inf" else value
    return out


def in_words(done: Sequence[Trained]) -> str:
    """The measures of each method in its first and its last row, with an interval over seeds."""
    wide = max(len(t.method) for t in done)
    lines: list[str] = []
    for t in done:
        lines.append(f"{t.method:{wide}}  {len(t.seeds)} seeds, {WORDS[t.how]}, {t.seconds:.1f} s of the processor")
        lines += [f"{'':{wide}}  ({t.why})"] if t.why else []
        for name in (m for m in MEASURES if m in t.columns):
            first, last = (mean_interval(row[np.isfinite(row)]) for row in (t.of(name)[0], t.last(name)))
            lines.append(
                f"{'':{wide}}  {name:14} {first.mean:.4g} → {last.mean:.4g} ({last.low:.4g} to {last.high:.4g})"
            )
    meanings = [f"{name}: {said}" for name, said in MEASURES.items() if any(name in t.columns for t in done)]
    return "\n".join([*lines, "", *meanings])


def _table(t: Trained) -> dict[str, Any]:
    columns = {name: [[None if x != x else x for x in row] for row in t.of(name).tolist()] for name in t.columns}
    facts = {"method": t.method, "how": t.how, "why": t.why, "seeds": t.seeds, "steps": t.steps, "seconds": t.seconds}
    return facts | {"columns": columns}
