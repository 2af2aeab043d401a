"""Training in an exact world: one method, many seeds, rows of exact measures.

    from gruppo.lab.tabular import train_exact
    trained = train_exact("grpo", seeds=100, steps=2000, prompts=8, samples=8)
    trained.last("reward").mean()

How it is done is chosen by what the method needs, and said in `trained.how`: all seeds in one batch; each seed in
batches of its own, where rooms compare over the batch; or the training loop itself, where rooms need episodes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gruppo.lab.exact.groups import Unlike
from gruppo.lab.tabular.expected import Expected
from gruppo.lab.tabular.measure import measured
from gruppo.lab.tabular.probe import Found, Probe
from gruppo.lab.tabular.quick import Mixed, Quick
from gruppo.lab.tabular.setup import Setup
from gruppo.lab.tabular.tables import Tables
from gruppo.lab.tabular.whole import Whole
from gruppo.methods import method as by_name
from gruppo.stages import Method
from gruppo.stages.names import nearest

WORDS = {
    "together": "all seeds in one batch",
    "apart": "seed by seed",
    "loop": "by the training loop, seed by seed",
    "expected": "by the expected gradient",
}


MOST = 50_000_000  # numbers of all seeds in one table, 0.4 GB


class Runner(Protocol):
    def step(self, step: int) -> Mapping[str, Tensor]: ...

    @property
    def theta(self) -> Tensor: ...


@dataclass(frozen=True)
class Trained:
    """What became of a method: `columns` has one number for each row and seed, NaN where a metric was not logged."""

    method: str
    how: str
    why: str  # why not all seeds in one batch; empty if they were
    setup: Setup
    seeds: list[int]
    steps: list[int]  # of the rows
    columns: dict[str, np.ndarray] = field(repr=False)
    theta: Tensor = field(repr=False)  # the tables at the end, [S, Q, J]
    seconds: float = 0.0  # of the processor

    def last(self, metric: str) -> np.ndarray:
        """Of each seed, in the last row."""
        return self.of(metric)[-1]

    def of(self, metric: str) -> np.ndarray:
        if metric not in self.columns:
            raise ValueError(
                f"{metric}: it was not measured{nearest(metric, self.columns)}. There are {', '.join(self.columns)}."
            )
        return self.columns[metric]

    def rows(self, seed: int) -> list[dict[str, Any]]:
        """The rows of one seed, as the log of a run has them."""
        at = self.seeds.index(seed)
        return [
            {"step": step, **{k: float(x[i, at]) for k, x in self.columns.items() if x[i, at] == x[i, at]}}
            for i, step in enumerate(self.steps)
        ]


def train_exact(
    method: str | Method,
    setup: Setup | None = None,
    *,
    seeds: int | Sequence[int] = 10,
    tick: Callable[[int], None] = lambda step: None,
    **changes: Any,
) -> Trained:
    """Train a method in an exact world. `changes` are fields of Setup, of its world, or of its optimiser (`lr`)."""
    m = by_name(method) if isinstance(method, str) else method
    setup = changed(setup or Setup(), changes)
    setup.refuse_roles(m)
    count = seeds if isinstance(seeds, int) else len(seeds) if isinstance(seeds, Sequence) else 0
    each = max(setup.world.prompts * setup.world.answers, setup.prompts * setup.samples)
    if count * each > MOST:
        raise ValueError(
            f"seeds={count}: each has {each:,} numbers (prompts x answers), so together they fill the memory. Use "
            f"at most {MOST // each:,} seeds, or a smaller world, or fewer samples."
        )
    chosen: list[Any] = (
        list(range(seeds)) if isinstance(seeds, int) else list(seeds) if isinstance(seeds, Sequence) else []
    )
    if not all(type(s) is int and s >= 0 for s in chosen) or not 0 < len(set(chosen)) == len(chosen):
        raise ValueError(f"seeds={seeds}: no run, or the same one twice. Give a number, or different seeds from 0 on.")
    return _Training(m, setup, chosen, tick).trained()


def changed(setup: Setup, changes: Mapping[str, Any]) -> Setup:
    """The setup with changes: `steps`, or of what it holds `world.prompts`, in short `answers` or `lr`."""
    held = {name: changes.get(name, getattr(setup, name)) for name in ("world", "optim")}
    for name, part in held.items():
        if not is_dataclass(part):
            one = next(f.name for f in fields(getattr(setup, name)))
            raise ValueError(f"{name}={part}: it has fields of its own, and this is none. Write {name}.{one}=VALUE.")
    own = {f.name for f in fields(setup)}
    where = {f"{name}.{f.name}": (name, f.name) for name, part in held.items() for f in fields(part)}
    where |= {short: place for place in where.values() if (short := place[1]) not in own}
    for name in changes:
        if name not in {*own, *where}:
            raise ValueError(f"{name}: an exact world has no such setting{nearest(name, {*own, *where})}.")
    deep: dict[str, dict[str, Any]] = {name: {} for name in held}
    for name, value in changes.items():
        if name in where:
            deep[where[name][0]][where[name][1]] = value
    mine = {k: v for k, v in changes.items() if k in own}
    return replace(setup, **mine | {name: replace(part, **deep[name]) for name, part in held.items()})


class _Training:
    def __init__(self, method: Method, setup: Setup, seeds: list[int], tick: Callable[[int], None]) -> None:
        self.method, self.setup, self.seeds, self.tick = method, setup, seeds, tick
        self.worlds = [setup.world.of(s) for s in seeds]
        self.tables = Tables(self.worlds[0])
        self.start = self.tables.start(self.worlds)
        self.given = self.tables.start([setup.given(w) for w in self.worlds])
        self.rows: list[dict[str, Tensor]] = []
        self.found: Callable[[Tensor, int, int], Found] | None = None  # draws at the policy of a seed

    def trained(self) -> Trained:
        begun = time.process_time()
        how, why, runner = self._run()
        names = dict.fromkeys(n for row in self.rows for n in row)
        missing = torch.full((len(self.seeds),), torch.nan, dtype=torch.float64)
        columns = {n: np.stack([row.get(n, missing).numpy() for row in self.rows]) for n in names}
        steps = [s for s in range(self.setup.steps + 1) if self.setup.measured_at(s)]
        return Trained(
            self.method.name, how, why, self.setup, self.seeds, steps, columns, runner.theta.clone(),
            time.process_time() - begun,
        )  # fmt: skip

    def _run(self) -> tuple[str, str, Runner]:
        """In one batch if that is right, else in another way."""
        if self.setup.gradient == "expected":
            runner = Expected(self.method, self.setup, self.tables, self.worlds, self.start)
            self.found = None if runner.why else lambda theta, i, step: runner.every.found(theta, self.start[i], step)
            return "expected", runner.why, self._steps(runner)
        seeds = torch.tensor(self.seeds)
        why = ""
        try:
            quick = Quick(self.method, self.setup, self.tables, self.start, seeds, self.given)
            self.found = self._draws(together=True)
            try:
                return "together", why, self._steps(quick)
            except Mixed as said:
                why = str(said)
            quick = Quick(self.method, self.setup, self.tables, self.start, seeds, self.given)
            quick.together = False
            self.found = self._draws(together=False)
            return "apart", why, self._steps(quick)
        except Unlike as said:
            why, self.found = str(said), None
        if self.setup.lag:
            raise Unlike(f"it is trained by the loop, which has no lag here ({why}). Use lag=0")
        whole = Whole(self.method, self.setup, self.tables, self.worlds, seeds)
        self.found = whole.found
        try:
            return "loop", why, self._steps(whole)
        finally:
            whole.close()

    def _steps(self, runner: Any) -> Any:
        self.rows = [self._measured(runner.theta, 0)]
        for step in range(self.setup.steps):
            self.tick(step)
            logged = runner.step(step)
            if self.setup.measured_at(step + 1):
                self.rows.append(dict(logged) | self._measured(runner.theta, step + 1))
        return runner

    def _measured(self, theta: Tensor, step: int) -> dict[str, Tensor]:
        out = measured(self.tables, theta, self.start)
        if not self.setup.noise or self.found is None:
            return out
        found = [self.found(theta[i], i, step) for i in range(len(self.seeds))]
        out["noise"] = torch.tensor([f.noise(self.tables.prompts) for f in found], dtype=torch.float64)
        out["cosine"] = torch.tensor(
            [f.cosine(self.tables, theta[i]) for i, f in enumerate(found)], dtype=torch.float64
        )
        if all(f.knows_asked for f in found):
            falls = [f.falls(self.tables, theta[i]) for i, f in enumerate(found)]
            out["falls"] = torch.tensor(falls, dtype=torch.float64)
        return out

    def _draws(self, together: bool) -> Callable[[Tensor, int, int], Found]:
        probe = Probe(self.method, self.setup, self.tables, together)
        return lambda theta, i, step: probe.sampled(theta, self.start[i], self.seeds[i], self.setup.noise, step)
