"""By held-out accuracy: the best policy is kept (`save.best`), and a run that stops improving ends (`eval.patience`).

Both begin from the rows of metrics, so a resumed run goes on exactly. The best policy itself is in the folder `best`.
Until no checkpoint needs it any more, the one before it waits beside the checkpoints: a run that is killed goes on from
a checkpoint, whose best policy may be an earlier one.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gruppo.data.files import whole_folder
from gruppo.train.callbacks import Callback, Row, Step
from gruppo.train.checkpoint import checkpoints, step_of
from gruppo.train.config import RunConfig
from gruppo.train.manifest import NAME, damage, write_manifest
from gruppo.train.measured import comparable
from gruppo.train.progress import ANEW, word
from gruppo.train.saved import save_writers

if TYPE_CHECKING:
    from gruppo.train.trainer import Trainer

MARK = "best.json"
Scores = Mapping[int, float]  # held-out accuracy by step


def scores_of(rows: Sequence[Row]) -> dict[int, float]:
    return {int(r["step"]): r["held_out"] for r in comparable(rows) if r.get("held_out") is not None}


def best_step(scores: Scores, until: int | None = None) -> int | None:
    """The first step with the highest accuracy, up to a step."""
    known = {s: x for s, x in scores.items() if until is None or s <= until}
    return max(known, key=lambda s: (known[s], -s)) if known else None


class Best(Callback):
    """Keeps `best/policy`: the policy with the highest held-out accuracy so far, the first of equal ones.

    A better one is always a later one. So among the policies that are kept, the best one at a step is the latest up to
    it. That holds also if `save.best` was switched on, or off for a while, when some steps were done.
    """

    def __init__(self) -> None:
        self.best: tuple[int, float] | None = None  # step and accuracy of the policy in best/

    def begin(self, trainer: "Trainer", rows: Sequence[Row]) -> None:
        """The folder as it was after the last of these rows."""
        scores, here, now = scores_of(rows), trainer.folder["best"], int(rows[-1]["step"]) if rows else -1
        for step, path in _kept(trainer).items():
            if said := _damage(path):
                trainer.run.warn(f"{path} is damaged ({said}), so it was removed")
            if said or step not in scores:  # of steps that will be done again
                shutil.rmtree(path, ignore_errors=True)
        step = max(_kept(trainer), default=None)
        self.best = None if step is None else (step, scores[step])
        if step is None:
            shutil.rmtree(here, ignore_errors=True)  # cut short while it was removed
        elif kept_step(here) != step:  # also if a run was killed between two folders
            shutil.rmtree(here, ignore_errors=True)
            _aside(trainer, step).rename(here)
        self._check(trainer, scores, now)

    def _check(self, trainer: "Trainer", scores: Scores, now: int) -> None:
        """A better step than the one that is kept has no policy any more, or never had one."""
        later = {s: x for s, x in scores.items() if self.best is None or s > self.best[0]}
        wanted = best_step(later)
        if wanted is None or not self._better(scores[wanted]):
            return
        if now in scores and self._better(scores[now]):  # the weights of that step are at hand
            self._keep(trainer, now, scores[now])
        if now != wanted:
            left = f"the best one that is left is of step {self.best[0]}" if self.best else "later steps can become it"
            trainer.run.warn(
                f"the best policy so far, of step {wanted}, is gone from {trainer.folder['best']}, or was never kept: "
                f"{left}."
            )

    def _better(self, score: float) -> bool:
        return self.best is None or score > self.best[1]

    def row(self, trainer: "Trainer", row: Row) -> None:
        score = row.get("held_out")
        self.best = None if row.get(ANEW) else self.best
        if score is not None and self._better(score):
            self._keep(trainer, int(row["step"]), score)
            _prune(trainer)

    def _keep(self, trainer: "Trainer", step: int, score: float) -> None:
        here = trainer.folder["best"]
        if self.best is not None and self.best[0] in _needed(trainer) and here.exists():
            aside = _aside(trainer, self.best[0])
            shutil.rmtree(aside, ignore_errors=True)
            aside.parent.mkdir(parents=True, exist_ok=True)
            here.rename(aside)
        with whole_folder(here, MARK) as draft:
            save_writers(draft, trainer.run.models, trainer.run.learner.writers, trainer.run.tokenizer)
            (draft / MARK).write_text(json.dumps({"step": step, "held_out": score}), encoding="utf-8")
            _write_checksums(draft)
        self.best = step, score

    def end(self, trainer: "Trainer", summary: Row | None) -> None:
        if self.best is not None:  # else it ended before it had begun
            _prune(trainer)

    def facts(self, trainer: "Trainer") -> Row:
        return {} if self.best is None else {"best_step": self.best[0], "best_accuracy": self.best[1]}


def kept_step(folder: Path) -> int | None:
    """The step of the policy in a folder `best`; None if there is none."""
    try:
        return int(json.loads((folder / MARK).read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _damage(folder: Path) -> str:
    """What is wrong with a policy that is kept. One from before there were checksums gets them now."""
    if not (folder / NAME).exists():
        _write_checksums(folder)
    return damage(folder)


def _write_checksums(folder: Path) -> None:
    write_manifest(folder, [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()])


def _aside(trainer: "Trainer", step: int) -> Path:
    return trainer.folder["checkpoints"] / f"best-{step:06d}"


def _kept(trainer: "Trainer") -> dict[int, Path]:
    """The policies that are kept, by step: those beside the checkpoints, and the one in best/."""
    paths = (*trainer.folder["checkpoints"].glob("best-*"), trainer.folder["best"])
    return {step: path for path in paths if (step := kept_step(path)) is not None}


def _needed(trainer: "Trainer") -> set[int | None]:
    """The steps of the best policies of the checkpoints: a run may go on from each of them."""
    kept = _kept(trainer)
    saved = [step_of(p) for p in checkpoints(trainer.folder["checkpoints"])]
    return {max((s for s in kept if s <= step), default=None) for step in saved}


def _prune(trainer: "Trainer") -> None:
    needed = _needed(trainer)
    for path in trainer.folder["checkpoints"].glob("best-*"):
        if kept_step(path) not in needed:
            shutil.rmtree(path, ignore_errors=True)


class Patience(Callback):
    """Ends the run after so many evaluations in a row that were not better than the best one before them."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.scores: dict[int, float] = {}

    def begin(self, trainer: "Trainer", rows: Sequence[Row]) -> None:
        self.scores = scores_of(rows)

    def row(self, trainer: "Trainer", row: Row) -> None:
        self.scores = {} if row.get(ANEW) else self.scores
        if row.get("held_out") is not None:
            self.scores[int(row["step"])] = row["held_out"]

    def step(self, trainer: "Trainer", step: Step) -> None:
        best = best_step(self.scores)
        if best is None or step.done not in self.scores or step.done == trainer.config.steps:
            return
        if sum(s > best for s in self.scores) >= self.patience:
            called = word(comparable(trainer.folder.metrics()))
            trainer.end_early(
                f"{self.patience} evaluations without a better held-out {called} than {self.scores[best]:.3f} of step "
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
