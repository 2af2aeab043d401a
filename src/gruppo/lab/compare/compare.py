"""Methods side by side: several runs of each, as a table, as text and as a figure.

The unit is a seed. Runs of one seed share problems, initial weights and held-out prompts, so differences are paired by
seed. `processes.py` makes the runs; this file reads them.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gruppo.lab.compare.statistics import Pair, in_json, in_words, pairwise
from gruppo.stages.names import nearest
from gruppo.train.curves import shown
from gruppo.train.ended import ended as finished
from gruppo.train.ended import run_table
from gruppo.train.estimates import Interval, mean_interval
from gruppo.train.folder import RunFolder, finite, flat

APART = ("seed", "threads", "save.")  # settings that two runs of one entrant may differ in
SAME = ("task.", "eval.")  # settings that decide what is measured: the same for all entrants

UNIT = "seed"  # of the intervals


@dataclass(frozen=True)
class Result:
    """One finished run."""

    entrant: str
    seed: int
    folder: str
    seconds: float
    rows: list[dict[str, Any]] = field(repr=False)

    def curve(self, metric: str) -> dict[int, float]:
        return {r["step"]: r[metric] for r in self.rows if r.get(metric) is not None}

    def last(self, metric: str) -> float:
        return ([math.nan, *self.curve(metric).values()])[-1]


def read(path: Path, entrant: str) -> Result:
    summary = json.loads(RunFolder(path)["summary.json"].read_text())
    return Result(entrant, summary["seed"], str(path), summary["seconds"], RunFolder(path).metrics())


# ---- the comparison


@dataclass(frozen=True)
class Comparison:
    """`metric` at the last step of every run; `failed` has the reasons for missing runs."""

    title: str
    metric: str
    results: Sequence[Result]
    failed: Mapping[str, str] = field(default_factory=dict[str, str])
    command: str = ""

    def __post_init__(self) -> None:
        if self.results and not any(self.metric in row for r in self.results for row in r.rows):
            known = sorted({k for r in self.results for row in r.rows for k in row} - {"step"})
            raise ValueError(
                f"--metric {self.metric}: no run has logged it{nearest(self.metric, known)}, so there is nothing to "
                f"compare. Logged: {', '.join(known)}."
            )

    @property
    def entrants(self) -> list[str]:
        return list(dict.fromkeys(r.entrant for r in self.results))

    @property
    def seeds(self) -> list[int]:
        return sorted({r.seed for r in self.results})

    def of(self, entrant: str) -> list[Result]:
        return [r for r in self.results if r.entrant == entrant]

    def by_seed(self, entrant: str) -> np.ndarray:
        """The last value for each seed of the comparison; NaN where that run is missing."""
        found = {r.seed: r.last(self.metric) for r in self.of(entrant)}
        return np.array([found.get(seed, math.nan) for seed in self.seeds])

    def interval(self, entrant: str) -> Interval:
        values = self.by_seed(entrant)
        if np.isnan(values).all():
            return Interval(math.nan, math.nan, math.nan, 0)
        return mean_interval(values)

    def pairs(self) -> list[Pair]:
        return pairwise({name: self.by_seed(name) for name in self.entrants})

    def table(self) -> dict[str, Any]:
        """For JSON."""
        out = {
            "metric": self.metric,
            "seeds": self.seeds,
            "entrants": [self._row(name) for name in self.entrants],
            "differences": [asdict(p) | {"beyond_noise": p.beyond_noise} for p in self.pairs()],
            "failed": dict(self.failed),
            "command": self.command,
        }
        return in_json(out, UNIT)

    def _row(self, name: str) -> dict[str, Any]:
        runs = self.of(name)
        return {
            "name": name,
            **vars(self.interval(name)),
            "first": float(np.mean([next(iter(r.curve(self.metric).values()), math.nan) for r in runs])),
            "seconds": float(np.mean([r.seconds for r in runs])),
            "runs": [{"seed": r.seed, "value": r.last(self.metric), "folder": r.folder} for r in runs],
        }

    # ---- words

    def markdown(self) -> str:
        parts = [f"# {self.title}", f"`{self.command}`" if self.command else ""]
        if self.results:
            parts += [self._entrant_table(), self._difference_table()]
        if self.failed:
            parts.append("Runs that failed, and are in no number:\n\n" + "\n".join(
                f"- {name}: {why}" for name, why in self.failed.items()
            ))  # fmt: skip
        return "\n\n".join(p for p in parts if p) + "\n"

    def _entrant_table(self) -> str:
        rows = [
            [e["name"], f"{e['first']:.3f}", _shown(self.interval(e["name"])), str(e["n"]), f"{e['seconds']:.0f}"]
            for e in self.table()["entrants"]
        ]
        head = ("", "first", "last, 95 % interval", "seeds", "seconds a run")
        over = f"mean over seeds {', '.join(map(str, self.seeds))}, with Student's t-interval"
        if len(self.seeds) == 1:
            over = f"seed {self.seeds[0]} alone, so without an interval"
        return f"`{self.metric}` at the first and the last step; {over}.{self._late()}\n\n" + _table(head, rows)

    def _late(self) -> str:
        """Who is measured from a later step on than others, as an entrant of several stages is."""
        first = {name: min(steps) for name in self.entrants if (steps := self._steps(name))}
        least = min(first.values(), default=0)
        late = [f"`{name}` is measured from step {step} on" for name, step in first.items() if step > least]
        return f" First values are of different steps: {', '.join(late)}." if late else ""

    def _steps(self, name: str) -> list[int]:
        return [step for run in self.of(name) for step in run.curve(self.metric)]

    def _difference_table(self) -> str:
        pairs = self.pairs()
        if not pairs:
            return ""
        if all(p.difference.n < 2 for p in pairs):
            return "With one seed nothing can be said about differences: give two or more, better five."
        rows = [[f"{p.a} - {p.b}", _signed(p), _p(p.difference.p), _p(p.p_holm), _verdict(p)] for p in pairs]
        head = ("difference", "paired by seed, 95 % interval", "p", "p, Holm", "beyond noise")
        return _table(head, rows) + (
            f"\n\nBeyond noise: p < 0.05 in a paired t-test over seeds, after Holm's correction for {len(pairs)} "
            f'comparison{"s" if len(pairs) > 1 else ""}. "no" does not mean equal: the interval says how large a '
            "difference may hide."
        )

    # ---- files

    def write(self, folder: Path) -> None:
        """Write compare.json, compare.md and compare.png."""
        folder.mkdir(parents=True, exist_ok=True)
        picture = self.draw(folder / "compare.png")
        body = self.markdown() + ("\n![mean and 95 % band over seeds](compare.png)\n" if picture else "")
        for name, text in (("compare.json", json.dumps(finite(self.table()), indent=1) + "\n"), ("compare.md", body)):
            draft = folder / f".{name}.draft"
            draft.write_text(text)
            os.replace(draft, folder / name)

    def draw(self, path: Path) -> bool:
        """Writes the figure; False if there is nothing to draw."""
        drawn = self.figure()
        if drawn is not None:
            drawn.savefig(path, dpi=110)
        return drawn is not None

    def figure(self) -> Any:
        """Curves, as a matplotlib figure: the mean over seeds, with its t-interval as a band; None: no curves."""
        wanted = [m for m in dict.fromkeys((self.metric, "reward", "entropy", "length")) if self._has(m)]
        if not wanted:
            return None
        from matplotlib.figure import Figure  # not pyplot: a notebook has chosen how its figures are shown

        drawn = Figure(figsize=(4.2 * len(wanted), 3.4), layout="constrained")
        axes = np.atleast_1d(drawn.subplots(1, len(wanted)))
        for axis, metric in zip(axes, wanted, strict=True):
            for name in self.entrants:
                step, mean, low, high = self.band(name, metric)
                axis.plot(step, mean, marker="o" if len(step) < 12 else None, markersize=3, label=name)
                axis.fill_between(step, low, high, alpha=0.2, linewidth=0)
            axis.set(xlabel="step", title=metric)
            axis.spines[["top", "right"]].set_visible(False)
        axes[0].legend(frameon=False)
        drawn.suptitle(f"{self.title}: mean and 95 % band over {len(self.seeds)} seeds", fontsize="medium")
        return shown(drawn)

    def _has(self, metric: str) -> bool:
        return any(r.curve(metric) for r in self.results)

    def band(self, entrant: str, metric: str) -> tuple[list[int], list[float], list[float], list[float]]:
        """(steps, mean, low, high) over the seeds that have logged the step; the band of one seed is empty."""
        curves = [r.curve(metric) for r in self.of(entrant)]
        steps = sorted({s for c in curves for s in c})
        found = [mean_interval([c[s] for c in curves if s in c]) for s in steps]
        spread = [(i.low, i.high) if i.n > 1 else (i.mean, i.mean) for i in found]
        return steps, [i.mean for i in found], [low for low, _ in spread], [high for _, high in spread]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table that is also readable as text."""
    width = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]
    lines = [head, ["-" * w for w in width], *rows]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(line, width, strict=True)) + " |" for line in lines)


def _shown(i: Interval) -> str:
    return "—" if i.n == 0 else str(i) if i.n == 1 else in_words(i, UNIT)


def _signed(p: Pair) -> str:
    return "—" if p.difference.n < 2 else in_words(p.difference, UNIT, "+")


def _p(p: float) -> str:
    return "—" if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _verdict(p: Pair) -> str:
    return "—" if math.isnan(p.p_holm) else "yes" if p.beyond_noise else "no"


# ---- runs that are there already


def found_runs(paths: Sequence[Path]) -> tuple[list[Result], list[str]]:
    """Finished runs, grouped into entrants by their settings, and the folders that are not finished.

    Runs of one entrant differ only in seed, threads and folder. None of their code is run.
    """
    tables = {path: _settings(path) for path in paths}
    _refuse_other_tasks(tables)
    kinds: dict[tuple[Any, ...], dict[str, Any]] = {}
    results: list[Result] = []
    for path, table in tables.items():
        if not finished(path):
            continue
        own = {k: v for k, v in table.items() if not k.startswith(APART)}
        key = tuple(sorted((k, str(v)) for k, v in own.items()))
        kind = kinds.setdefault(key, {"name": _name(own, list(kinds.values())), "own": own})
        result = read(path, kind["name"])
        if any(r.entrant == result.entrant and r.seed == result.seed for r in results):
            raise ValueError(
                f"{path} is a second run of {result.entrant} with seed {result.seed}: it would count twice. Leave one "
                "of them out."
            )
        results.append(result)
    return results, [str(path) for path in paths if not finished(path)]


def _settings(path: Path) -> dict[str, Any]:
    try:
        return dict(flat(run_table(path)))
    except ValueError as error:
        raise ValueError(f"{error} Or leave the run out.") from None


def _refuse_other_tasks(tables: Mapping[Path, Mapping[str, Any]]) -> None:
    first, *others = tables.items()
    for path, table in others:
        for key in dict.fromkeys((*first[1], *table)):
            if key.startswith(SAME) and first[1].get(key) != table.get(key):
                raise ValueError(
                    f"{first[0]} has {key}={first[1].get(key)} and {path} has {key}={table.get(key)}: they measure "
                    "different things, so their numbers cannot stand in one table. Compare runs of one task and one "
                    "evaluation."
                )


def _name(own: Mapping[str, Any], kinds: Sequence[Mapping[str, Any]]) -> str:
    """The name of the method; for a second entrant of that name, with the settings that differ."""
    base = next((k["own"] for k in kinds if k["own"]["method.name"] == own["method.name"]), None)
    if base is None:
        return str(own["method.name"])
    changed = [f"{k}={own.get(k, 'absent')}" for k in dict.fromkeys((*base, *own)) if base.get(k) != own.get(k)]
    return " ".join([str(own["method.name"]), *changed])
