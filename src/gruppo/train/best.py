"""By held-out accuracy: the best policy is kept (`save.best`), and a run that stops improving ends (`eval.patience`).

Both know nothing but the rows of metrics, so a resumed run goes on exactly. The best policy itself is in the folder
`best`. Until no checkpoint needs it any more, the one before it waits beside the checkpoints: a run that is killed goes
on from a checkpoint, whose best policy may be an earlier one.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gruppo.data.files import whole_folder
from gruppo.policies.save import save_policy
from gruppo.train.callbacks import Callback, Row, Step
from gruppo.train.checkpoint import checkpoints, step_of
from gruppo.train.config import RunConfig

if TYPE_CHECKING:
    from gruppo.train.trainer import Trainer

MARK = "best.json"
Scores = Mapping[int, float]  # held-out accuracy by step


def scores_of(rows: Sequence[Row]) -> dict[int, float]:
    return {int(r["step"]): r["held_out"] for r in rows if r.get("held_out") is not None}


def best_step(scores: Scores, until: int | None = None) -> int | None:
    """The first step with the highest accuracy, up to a step."""
    known = {s: x for s, x in scores.items() if until is None or s <= until}
    return max(known, key=lambda s: (known[s], -s)) if known else None


class Best(Callback):
    """Keeps `best/policy`: the policy with the highest held-out accuracy so far, the first of equal ones."""

    def __init__(self) -> None:
        self.scores: dict[int, float] = {}

    def begin(self, trainer: "Trainer", rows: Sequence[Row]) -> None:
        """The folder as it was after the last of these rows."""
        self.scores = scores_of(rows)
        wanted, here = best_step(self.scores), trainer.folder["best"]
        aside = _aside(trainer, wanted)
        if wanted is None:
            shutil.rmtree(here, ignore_errors=True)
        elif aside is not None and aside.is_dir():  # also while a killed run was between two folders
            shutil.rmtree(here, ignore_errors=True)
            aside.rename(here)
        elif kept_step(here) != wanted:
            self._begin_without(trainer, wanted, int(rows[-1]["step"]))

    def _begin_without(self, trainer: "Trainer", wanted: int, now: int) -> None:
        shutil.rmtree(trainer.folder["best"], ignore_errors=True)
        if now != wanted:
            trainer.run.warn(
                f"the best policy so far, of step {wanted}, is gone from {trainer.folder['best']}: only steps from "
                f"{now} on can become the best one."
            )
        self.scores = {now: self.scores[now]} if now in self.scores else {}
        if self.scores:  # the weights of that step are at hand
            self._write(trainer, now)

    def row(self, trainer: "Trainer", row: Row) -> None:
        if row.get("held_out") is None:
            return
        step, before = int(row["step"]), best_step(self.scores)
        self.scores[step] = row["held_out"]
        if best_step(self.scores) == step:
            self._set_aside(trainer, before)
            self._write(trainer, step)

    def _write(self, trainer: "Trainer", step: int) -> None:
        with whole_folder(trainer.folder["best"], MARK) as draft:
            save_policy(draft / "policy", trainer.run.models["policy"], trainer.run.tokenizer)
            (draft / MARK).write_text(json.dumps({"step": step, "held_out": self.scores[step]}), encoding="utf-8")

    def _set_aside(self, trainer: "Trainer", before: int | None) -> None:
        """The best policy so far, if a run may go on from a checkpoint that it belongs to."""
        here, aside = trainer.folder["best"], _aside(trainer, before)
        if aside is not None and kept_step(here) == before and before in self._needed(trainer):
            shutil.rmtree(aside, ignore_errors=True)
            aside.parent.mkdir(parents=True, exist_ok=True)
            here.rename(aside)

    def _needed(self, trainer: "Trainer") -> set[int | None]:
        kept = [step_of(p) for p in checkpoints(trainer.folder["checkpoints"])]
        return {best_step(self.scores, until=step) for step in kept}

    def end(self, trainer: "Trainer", summary: Row | None) -> None:
        if not self.scores:  # ended before it had begun
            return
        needed = self._needed(trainer)
        for path in trainer.folder["checkpoints"].glob("best-*"):
            if step_of(path) not in needed:
                shutil.rmtree(path, ignore_errors=True)

    def facts(self, trainer: "Trainer") -> Row:
        step = best_step(self.scores)
        return {} if step is None else {"best_step": step, "best_accuracy": self.scores[step]}


def kept_step(folder: Path) -> int | None:
    """The step of the policy in a folder `best`; None if there is none."""
    try:
        return int(json.loads((folder / MARK).read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _aside(trainer: "Trainer", step: int | None) -> Path | None:
    return None if step is None else trainer.folder["checkpoints"] / f"best-{step:06d}"


class Patience(Callback):
    """Ends the run after so many evaluations in a row that were not better than the best one before them."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.scores: dict[int, float] = {}

    def begin(self, trainer: "Trainer", rows: Sequence[Row]) -> None:
        self.scores = scores_of(rows)

    def row(self, trainer: "Trainer", row: Row) -> None:
        if row.get("held_out") is not None:
            self.scores[int(row["step"])] = row["held_out"]

    def step(self, trainer: "Trainer", step: Step) -> None:
        best = best_step(self.scores)
        if best is None or step.done not in self.scores or step.done == trainer.config.steps:
            return
        if sum(s > best for s in self.scores) >= self.patience:
            trainer.end_early(
                f"{self.patience} evaluations without a better held-out accuracy than {self.scores[best]:.3f} of step "
                f"{best}"
            )


def by_accuracy(config: RunConfig) -> list[Callback]:
    """As `save.best` and `eval.patience` say."""
    if config.eval.patience and not config.eval.every:
        raise ValueError(
            f"eval.patience={config.eval.patience} with eval.every=0: there is no evaluation between the first step "
            "and the last, so the run could not end early. Set eval.every."
        )
    out: list[Callback] = [Best()] if config.save.best else []
    return [*out, *([Patience(config.eval.patience)] if config.eval.patience else [])]
