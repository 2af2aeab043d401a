"""What watches a run: loggers, samples on the screen, early stopping, functions of the user."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gruppo.stages import StepRecord

if TYPE_CHECKING:
    from gruppo.train.config import RunConfig
    from gruppo.train.trainer import Trainer

Row = Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class Step:
    """A step that is done: how many are, its row of metrics, what it learned from, and the run folder."""

    done: int
    row: dict[str, Any]
    record: StepRecord
    folder: Path = Path()

    def __repr__(self) -> str:
        reward, episodes = self.row.get("reward", float("nan")), len(self.record.episodes)
        return f"<step {self.done}: reward {reward:.3g}, {episodes} episodes, {self.folder}>"


class Callback:
    """A base whose methods do nothing: override what you need. What they raise ends the run.

    A callback that keeps state rebuilds it in `begin` from the rows so far, so that a resumed run goes on exactly.
    """

    def begin(self, trainer: "Trainer", rows: Sequence[Row]) -> None:
        """Before the first step of this process; `rows` are the metrics so far, none in a new run."""

    def row(self, trainer: "Trainer", row: Row) -> None:
        """A row of metrics was logged: row 0 before the first step, then one for each step."""

    def step(self, trainer: "Trainer", step: Step) -> None:
        """A step was done and logged, and not yet saved. `trainer.end_early(why)` makes it the last one."""

    def facts(self, trainer: "Trainer") -> Row:
        """What summary.json is to say of it, at the end of the run."""
        return {}

    def end(self, trainer: "Trainer", summary: Row | None) -> None:
        """The process is done with the run; None if it did not come to its end."""


def standing(config: "RunConfig") -> list[Callback]:
    """Those that the settings ask for: save.tensorboard, save.log, save.best, eval.patience."""
    from gruppo.train.best import by_accuracy
    from gruppo.train.loggers import loggers

    return [*tensorboard(config.save.tensorboard), *loggers(config), *by_accuracy(config)]


class TensorBoard(Callback):
    """Every metric as a curve, in the folder `tensorboard` of the run."""

    board: Any = None

    def begin(self, trainer: "Trainer", rows: Sequence[Row]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Steps after the checkpoint are done again, and must not be shown twice.
        again = int(rows[-1]["step"]) + 1 if rows else None
        self.board = SummaryWriter(str(trainer.folder["tensorboard"]), purge_step=again)

    def row(self, trainer: "Trainer", row: Row) -> None:
        for name, value in row.items():
            if name != "step" and value is not None:
                self.board.add_scalar(name, value, row["step"])

    def end(self, trainer: "Trainer", summary: Row | None) -> None:
        if self.board is not None:
            self.board.close()


def tensorboard(wanted: str) -> list[Callback]:
    """As `save.tensorboard` says: yes, no, or if it is installed."""
    installed = find_spec("tensorboard") is not None
    if wanted == "yes" and not installed:
        raise ValueError(
            "save.tensorboard=yes, but tensorboard is not installed: nothing would be written. "
            "pip install 'gruppo[tensorboard]', or save.tensorboard=no."
        )
    return [TensorBoard()] if installed and wanted != "no" else []
