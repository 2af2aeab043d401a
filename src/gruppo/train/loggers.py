"""Loggers as callbacks: `save.log=wandb,mlflow,trackio`, each behind the extra `loggers`.

A logger gets the configuration, every row of metrics, and at each evaluation a few held-out answers as a table. Which
run it is over there, and the last step that it was given, is in `log-NAME.json` of the run folder: a resumed run goes
on in the same place, and no step comes twice. What the run itself goes by stays metrics.jsonl.
"""

import json
import math
import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gruppo.stages.names import nearest
from gruppo.stages.record import to_table
from gruppo.tasks.imports import library
from gruppo.train.callbacks import Callback, Row
from gruppo.train.config import RunConfig
from gruppo.train.folder import flat, read_json
from gruppo.train.manifest import write_text

if TYPE_CHECKING:
    from gruppo.train.trainer import Trainer

SAMPLES = 8  # held-out answers in the table of an evaluation
COLUMNS = ("step", "prompt", "reference", "answer", "reward", "status")


class Logger(Callback):
    """What the three have in common. A subclass opens, sends and closes."""

    name = ""

    def __init__(self) -> None:
        self.id, self.logged, self.path = "", -1, Path()
        self.open = self.failing = False
        self.waiting: list[tuple[Row, list[Row]]] = []  # rows that it has not been given yet

    def begin(self, trainer: "Trainer", rows: Sequence[Row]) -> None:
        self.path = trainer.folder[f"log-{self.name}.json"]
        known = read_json(self.path) if self.path.is_file() else {}
        self.id, self.logged = str(known.get("id", "")), int(known.get("step", -1))
        config = {k: v for k, v in flat(to_table(trainer.config)) if not k.endswith("kind")}
        try:
            with redirect_stdout(sys.stderr):  # stdout may be JSON
                self.id = self.start(trainer, self.id, config)
        except Exception as error:  # of any kind: of the network, of a key, of a database
            raise ValueError(
                f"save.log={self.name} cannot be started ({error}). Fix it, or go on without: save.log="
            ) from error
        self.open = True
        self._note(self.logged)
        self.waiting = [(row, []) for row in rows]  # if it was not there at first
        self._give(trainer)

    def row(self, trainer: "Trainer", row: Row) -> None:
        self.waiting.append((row, samples(trainer, int(row["step"])) if "held_out" in row else []))
        self._give(trainer)

    def _give(self, trainer: "Trainer") -> None:
        """Everything that waits, in its order. A logger that fails does not end the run: it is tried again."""
        try:
            while self.waiting:
                row, table = self.waiting[0]
                if int(row["step"]) > self.logged:
                    self.send(int(row["step"]), _numbers(row), table)
                    self._note(int(row["step"]))
                self.waiting.pop(0)
            self.failing = False
        except Exception as error:
            if not self.failing:
                trainer.run.warn(f"{self.name} takes no rows ({error}): they wait, and are in metrics.jsonl.")
            self.failing = True

    def _note(self, step: int) -> None:
        self.logged = step
        write_text(self.path, json.dumps({"id": self.id, "step": step}))

    def end(self, trainer: "Trainer", summary: Row | None) -> None:
        if self.waiting:
            trainer.run.warn(f"{len(self.waiting)} rows were not logged by {self.name}: it did not take them.")
        if self.open:
            with redirect_stdout(sys.stderr), suppress(Exception):  # the run itself is done
                self.stop(summary)

    def start(self, trainer: "Trainer", known: str, config: Mapping[str, Any]) -> str:
        """Opens the run of this id, or a new one; its id."""
        raise NotImplementedError

    def send(self, step: int, numbers: Mapping[str, float], table: list[Row]) -> None:
        raise NotImplementedError

    def stop(self, summary: Row | None) -> None:
        raise NotImplementedError


def _numbers(row: Row) -> dict[str, float]:
    return {k: float(v) for k, v in row.items() if k != "step" and v is not None and math.isfinite(v)}


def samples(trainer: "Trainer", step: int) -> list[Row]:
    """The first held-out answers of the newest evaluation, one for each prompt."""
    from gruppo.train.episodes import prompt_of, row_of

    found = trainer.evaluation
    if found is None:
        return []
    out: list[Row] = []
    for i, e in enumerate(found.episodes[: SAMPLES * found.samples : found.samples]):
        task = trainer.run.tasks.held_out[i]
        row = row_of(e, step, prompt_of(task), task.answer or task.solution, math.nan)
        out.append({name: row[name] if row[name] == row[name] else None for name in COLUMNS})
    return out


class Wandb(Logger):
    """Weights & Biases. Without a key, and without WANDB_MODE, it logs offline: `wandb sync` sends it later."""

    name = "wandb"

    def start(self, trainer: "Trainer", known: str, config: Mapping[str, Any]) -> str:
        self.wandb = library("wandb", "save.log=wandb asks for it", "loggers")
        key = os.environ.get("WANDB_API_KEY") or getattr(getattr(self.wandb, "api", None), "api_key", None)
        mode = None if key or "WANDB_MODE" in os.environ else "offline"
        self.run = self.wandb.init(
            project=os.environ.get("WANDB_PROJECT", "gruppo"),
            name=trainer.folder.path.name,
            id=known or secrets.token_hex(4),
            resume="allow",
            dir=str(trainer.folder.path),
            config=dict(config),
            mode=mode,
        )
        return str(self.run.id)

    def send(self, step: int, numbers: Mapping[str, float], table: list[Row]) -> None:
        shown = [[row[name] for name in COLUMNS] for row in table]
        tables = {"samples": self.wandb.Table(columns=list(COLUMNS), data=shown)} if table else {}
        self.run.log({**numbers, **tables}, step=step)

    def stop(self, summary: Row | None) -> None:
        self.run.finish(exit_code=0 if summary is not None else 1)


class MLflow(Logger):
    """MLflow. Without MLFLOW_TRACKING_URI it logs to a database beside the runs: mlflow.db and mlflow."""

    name = "mlflow"

    def start(self, trainer: "Trainer", known: str, config: Mapping[str, Any]) -> str:
        why = "save.log=mlflow asks for it"
        mlflow, self.entities = library("mlflow", why, "loggers"), library("mlflow.entities", why, "loggers")
        runs = trainer.folder.path.parent.resolve()
        self.client = mlflow.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{runs / 'mlflow.db'}"))
        if known:
            self.client.update_run(known, status="RUNNING")
            return known
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "gruppo")
        found = self.client.get_experiment_by_name(name)
        place = {} if "MLFLOW_TRACKING_URI" in os.environ else {"artifact_location": (runs / "mlflow").as_uri()}
        experiment = found.experiment_id if found else self.client.create_experiment(name, **place)
        self.id = str(self.client.create_run(experiment, run_name=trainer.folder.path.name).info.run_id)
        params = [self.entities.Param(_word(k), str(v)[:6000]) for k, v in config.items()]
        for i in range(0, len(params), 100):
            self.client.log_batch(self.id, params=params[i : i + 100])
        return self.id

    def send(self, step: int, numbers: Mapping[str, float], table: list[Row]) -> None:
        now = int(time.time() * 1000)
        self.client.log_batch(self.id, [self.entities.Metric(_word(k), v, now, step) for k, v in numbers.items()])
        if table:
            text = json.dumps({"columns": COLUMNS, "data": [[row[name] for name in COLUMNS] for row in table]})
            self.client.log_text(self.id, text, f"samples/step-{step:06d}.json")

    def stop(self, summary: Row | None) -> None:
        self.client.set_terminated(self.id, "FINISHED" if summary is not None else "KILLED")


def _word(name: str) -> str:
    """MLflow takes no @ and no brackets in names: pass@4 is pass_at_4."""
    return name.replace("@", "_at_").replace("[", ".").replace("]", "")


class Trackio(Logger):
    """Trackio, in its own folder on this machine: `trackio show --project gruppo`."""

    name = "trackio"

    def start(self, trainer: "Trainer", known: str, config: Mapping[str, Any]) -> str:
        self.trackio = library("trackio", "save.log=trackio asks for it", "loggers")
        name = known or f"{trainer.folder.path.name}-{secrets.token_hex(4)}"  # the name is what tells runs apart
        project = os.environ.get("TRACKIO_PROJECT", "gruppo")
        quiet = {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}
        self.run = self.trackio.init(project=project, name=name, config=dict(config), resume="allow", **quiet)
        return name

    def send(self, step: int, numbers: Mapping[str, float], table: list[Row]) -> None:
        shown = [[row[name] for name in COLUMNS] for row in table]
        tables = {"samples": self.trackio.Table(columns=list(COLUMNS), data=shown)} if table else {}
        self.run.log({**numbers, **tables}, step=step)

    def stop(self, summary: Row | None) -> None:
        self.run.finish()


LOGGERS: dict[str, type[Logger]] = {c.name: c for c in (Wandb, MLflow, Trackio)}


def loggers(config: RunConfig) -> list[Callback]:
    """As `save.log` says. What is unknown or not installed is refused before anything is loaded."""
    for name in config.save.log:
        if name not in LOGGERS:
            raise ValueError(
                f"save.log={name}: there is no such logger{nearest(name, LOGGERS)}, so nothing was started. Use "
                f"{', '.join(LOGGERS)}, several with commas between them; tensorboard has save.tensorboard."
            )
        library(name, f"save.log={name} asks for it", "loggers")
    return [LOGGERS[name]() for name in dict.fromkeys(config.save.log)]
