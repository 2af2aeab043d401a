"""Progress of a run: a live table on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

SHOWN = (
    "reward",
    "accuracy",
    "held_out",
    "length",
    "turns",
    "truncated",
    "failed",
    "open",
    "entropy",
    "dead_groups",
    "grad_norm",
    "tokens_per_second",
)
RETURN, HELD_OUT = "return/", "held_out/return/"  # of one agent of several
MEANS = ("reward", "accuracy", "held_out")  # over all agents, which say nothing in a zero-sum game
ANEW = "held_out/anew"  # in a row that measures anew, since the task has changed
RARE = ("turns", "failed", "open")  # from the first time on that there are any: one answer has no turns
MISSING = "—"


def word(rows: Iterable[Mapping[str, Any]]) -> str:
    """What a mean score is called: as in the evaluations, which ask the task. How a method pays in training is no part
    of it."""
    return "score" if any(row.get("held_out/graded") is not None for row in rows) else "accuracy"


def returns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float | None, ...]]:
    """{seat: its held-out return in the first evaluation and, if there was another, in the last}; empty if there is
    one seat. None: it was not measured there, since fewer than two seats ever acted."""
    measured = [r for r in rows if r.get("held_out") is not None or any(k.startswith(HELD_OUT) for k in r)]
    seats = dict.fromkeys(k for r in measured for k, value in r.items() if k.startswith(HELD_OUT) and value is not None)
    ends = (measured[0], measured[-1]) if len(measured) > 1 else measured
    return {seat.removeprefix(HELD_OUT): tuple(r.get(seat) for r in ends) for seat in seats}


def change_words(values: Sequence[float | None], sign: str = "") -> str:
    """`0.250 → -0.500`; a value that is missing is a dash."""
    return " → ".join(MISSING if v is None else f"{v:{sign}.3f}" for v in values)


class Display:
    """`update` after every step; `say` for a message. Use it as a context manager."""

    def __init__(self, title: str, steps: int, start: int = 0, quiet: bool = False) -> None:
        self.console = Console(stderr=False, highlight=False)
        self.live = self.console.is_terminal and not quiet
        self.title, self.steps, self.quiet, self.first = title, steps, quiet, start
        self.row: dict[str, float] = {}
        self.measured = 0  # the step of its held-out accuracy
        self.word = "accuracy"
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.task = self.bar.add_task(title, total=steps, completed=start)
        self._live: Live | None = None
        self._next, self._begun = 0.0, time.perf_counter()
        self.spoken = time.monotonic()  # when anything was shown last

    def __enter__(self) -> "Display":
        if self.live:
            self._live = Live(self._table(), console=self.console, refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*error)
            self._live = None

    def start(self) -> None:
        """The first step begins now: what was done before it says nothing about the time that is left."""
        self._begun = time.perf_counter()

    def say(self, text: str) -> None:
        if not self.quiet:
            self.spoken = time.monotonic()
            self.console.print(text, markup=False, soft_wrap=True)

    def begin(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """What was measured before the next step."""
        self.word = word(rows)
        for row in rows:
            if "held_out" in row:
                self.row["held_out"], self.measured = row["held_out"], row["step"]

    def update(self, step: int, row: Mapping[str, float]) -> None:
        # A row may lack returns (a seat did not act) and `open` (no episode is): then older ones are not shown either.
        stale = ((RETURN, "reward"), (HELD_OUT, "held_out"), ("open", "reward"))
        gone = tuple(of for of, name in stale if name in row)
        self.row = {k: v for k, v in self.row.items() if not k.startswith(gone)}
        self.row |= {
            k: v
            for k, v in row.items()
            if k.startswith((RETURN, HELD_OUT)) or (k in SHOWN and (k not in RARE or v > 0 or k in self.row))
        }
        self.measured = step if "held_out" in row else self.measured
        self.word = word([row]) if self.word == "accuracy" else self.word
        self.bar.update(self.task, completed=step)
        if self._live is not None:
            self.spoken = time.monotonic()
            self._live.update(self._table(step))
        elif not self.quiet and (time.perf_counter() >= self._next or step == self.steps):
            self._next, self.spoken = time.perf_counter() + 5.0, time.monotonic()
            self.console.print(self._line(step), markup=False, soft_wrap=True)
            sys.stdout.flush()

    def _line(self, step: int) -> str:
        spent = time.perf_counter() - self._begun
        left = spent / max(step - self.first, 1) * (self.steps - step)
        numbers = "  ".join(f"{self._label(k)} {self._shown(k, step)}" for k in self._names() if k in self.row)
        return f"step {step}/{self.steps}  {numbers}  left {left:.0f} s"

    def _names(self) -> list[str]:
        """Of what is shown. The returns of several agents stand for their mean, which is 0 in every zero-sum game."""
        returns = [k for k in self.row if k.startswith((RETURN, HELD_OUT))]
        return [*returns, *(k for k in SHOWN if k not in MEANS)] if returns else list(SHOWN)

    def _label(self, name: str) -> str:
        return self.word if name == "accuracy" else name

    def _shown(self, name: str, step: int) -> str:
        """A number, or a dash where there was nothing to measure; an accuracy that was measured earlier says when."""
        earlier, value = name.startswith("held_out") and self.measured != step, self.row[name]
        return (MISSING if isnan(value) else f"{value:.3g}") + (f" (step {self.measured})" if earlier else "")

    def _table(self, step: int = 0) -> Table:
        grid = Table.grid(padding=(0, 1))
        numbers = Table(show_edge=False, box=None, pad_edge=False)
        names = [k for k in self._names() if k in self.row or k not in RARE]
        for name in names:
            numbers.add_column(self._label(name), justify="right")
        numbers.add_row(*[self._shown(k, step) if k in self.row else "" for k in names])
        grid.add_row(self.bar)
        grid.add_row(numbers)
        return grid
