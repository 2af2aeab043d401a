"""A run folder seen from Python: summary, metrics and episodes as tables, curves, the policy."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gruppo.tasks.imports import library
from gruppo.train.config import RunConfig
from gruppo.train.curves import figure, shown
from gruppo.train.ended import ended
from gruppo.train.episodes import episode_rows, flat
from gruppo.train.folder import RunFolder, read_json
from gruppo.train.measured import result_words
from gruppo.train.missing import refuse_missing
from gruppo.train.saved import others_in

if TYPE_CHECKING:
    from gruppo.train.evaluate import Evaluation


class SavedRun:
    """A run, finished or not. Everything is read from its folder at the moment it is asked for."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._files = RunFolder(self.folder)
        if not self._files["config.toml"].is_file():
            refuse_missing(self.folder)
            raise ValueError(
                f"{folder} is not a run folder: it has no config.toml. Name a folder that gruppo train made."
            )

    @property
    def finished(self) -> bool:
        """Whether it has come to its end, and all that it left is as it was written."""
        return ended(self.folder) and not self._files.damage()

    @property
    def summary(self) -> dict[str, Any]:
        """summary.json; of a run that is not finished, the steps so far and how to go on."""
        if ended(self.folder):
            return read_json(self._files["summary.json"])
        steps = max([row["step"] for row in self.metrics()], default=0)
        return {"steps": steps, "stopped": True, "folder": str(self.folder), "resume": self._files.resume_command}

    @property
    def config(self) -> RunConfig:
        """Its configuration, as objects. Code that the run brings along is run only if it is known here."""
        return self._files.read_config()

    @property
    def policy(self) -> Path:
        """The folder of the trained policy, for `gruppo.evaluate`, transformers or `gruppo push`."""
        return self._policy("policy", "it is written when the run has come to its end")

    @property
    def writers(self) -> dict[str, Path]:
        """{role: folder} of the roles that wrote for agents beside the policy (`method.writers`)."""
        return others_in(self.folder)

    @property
    def best(self) -> Path:
        """The folder of the policy with the best held-out accuracy, if the run was started with `save.best`."""
        return self._policy("best/policy", "it is kept with save.best=true")

    def _policy(self, name: str, when: str) -> Path:
        if not self._files[name].is_dir():
            raise ValueError(f"{self.folder} has no {name}: {when}.")
        return self._files[name]

    def metrics(self) -> list[dict[str, Any]]:
        """One row for each step; row 0 is the evaluation before the first one."""
        return self._files.metrics()

    def frame(self) -> Any:
        """The metrics as a pandas table, with the step as its index."""
        return _pandas().DataFrame(self.metrics()).set_index("step")

    def episodes(self, step: int | Sequence[int] | None = None) -> list[dict[str, Any]]:
        """One row for each stored episode of these steps, by default of the newest one: prompt, answer, reward, …"""
        return episode_rows(self.folder, [step] if isinstance(step, int) else step)

    def episode_frame(self, step: int | Sequence[int] | None = None) -> Any:
        """The episodes as a pandas table, with a column for each component of the reward."""
        return _pandas().DataFrame([flat(row) for row in self.episodes(step)])

    def curves(self) -> Any:
        """A matplotlib figure of the metrics; the last line of a notebook's cell shows it."""
        return shown(figure(self.metrics(), self.folder.name))

    def resume(self, **settings: Any) -> "SavedRun":
        """`gruppo.resume` of this run."""
        from gruppo.api import resume

        return resume(self, **settings)

    def evaluate(self, **settings: Any) -> "Evaluation":
        """`gruppo.evaluate` of its policy, by default on its own task."""
        from gruppo.api import evaluate

        return evaluate(self, **settings)

    def __repr__(self) -> str:
        s = self.summary
        if "stopped" in s:
            return f"<run {self.folder}: {s['steps']} steps done, not finished>"
        return f"<run {self.folder}: {s['method']} on {s['task']}, {s['steps']} steps, {result_words(s)}>"


def _pandas() -> Any:
    return library("pandas", "tables are made with it; metrics() and episodes() are lists and do without", "data")
