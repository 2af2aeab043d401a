"""Loggers get the configuration, every row once, and samples; a resumed run goes on in the same place.

The calls are checked with modules that write down what they are given, and where they are installed with the real ones.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from train_runs import SMALL, gruppo, metrics, train
from warm import SRC

from gruppo.train import trainer

RUN = ("steps=4", "save.checkpoint_every=3", "eval.prompts=3", "eval.every=2", "save.episodes_every=0")


class Killed(BaseException):
    pass


def killed_in_last_step(*settings: str) -> None:
    """runs/b: dies in step 5 of 6, when the checkpoint of step 3 is the newest."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        plain = trainer.train_step

        async def train_step(run: Any, step: int) -> Any:
            if step == 4:
                raise Killed
            return await plain(run, step)

        patch.setattr(trainer, "train_step", train_step)
        train("b", *RUN, "steps=6", *settings)


# modules that write down what they are given


class Fake(ModuleType):
    """wandb, trackio or mlflow, as far as we call them."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.given: list[tuple[str, str, Any]] = []  # (id, what, …)
        self.api = SimpleNamespace(api_key=None)
        self.open = 0
        self.refusing = 0  # so many calls

    def refuse(self) -> None:
        self.refusing -= 1
        if self.refusing >= 0:
            raise ConnectionError("no answer")

    def Table(self, columns: list[str], data: list[list[Any]]) -> Any:
        assert all(len(row) == len(columns) for row in data)
        return ("table", columns, data)

    def init(self, **given: Any) -> Any:
        key = given["id" if self.__name__ == "wandb" else "name"]
        self.given.append((key, "init", given))
        self.open += 1

        def log(row: dict[str, Any], step: int) -> None:
            self.refuse()
            self.given.append((key, "row", (step, row)))

        def finish(**how: Any) -> None:
            self.given.append((key, "finish", how))
            self.open -= 1

        return SimpleNamespace(id=key, log=log, finish=finish)

    # mlflow

    def MlflowClient(self, place: str) -> Any:
        self.place = place
        return self

    def get_experiment_by_name(self, name: str) -> Any:
        return None

    def create_experiment(self, name: str, **_: Any) -> str:
        return name

    def create_run(self, experiment: str, run_name: str) -> Any:
        key = f"r{len(self.given)}"
        self.given.append((key, "init", {"config": {}}))
        self.open += 1
        return SimpleNamespace(info=SimpleNamespace(run_id=key))

    def update_run(self, key: str, status: str) -> None:
        assert status == "RUNNING"
        self.given.append((key, "init", {"config": {}}))
        self.open += 1

    def log_batch(self, key: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(params) <= 100
        self.given[0][2]["config"] |= {p[0]: p[1] for p in params}
        if metrics:
            self.refuse()
            self.given.append((key, "row", (metrics[0][3], {m[0]: m[1] for m in metrics})))

    def log_text(self, key: str, text: str, file: str) -> None:
        step, table = self.given[-1][2][0], json.loads(text)
        assert file == f"samples/step-{step:06d}.json"
        self.given[-1][2][1]["samples"] = self.Table(**table)

    def set_terminated(self, key: str, status: str) -> None:
        self.given.append((key, "finish", {"status": status}))
        self.open -= 1

    def rows(self) -> list[tuple[int, dict[str, Any]]]:
        return [content for _, what, content in self.given if what == "row"]


@pytest.fixture(params=["wandb", "mlflow", "trackio"])
def fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Fake:
    module = Fake(request.param)
    monkeypatch.setitem(sys.modules, request.param, module)
    entities = SimpleNamespace(Metric=lambda *parts: parts, Param=lambda *parts: parts)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)  # type: ignore[arg-type]
    for name in ("WANDB_API_KEY", "WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    return module


# What a run does with rows that wait is the same for all of them: one here, all with the slow tests.
ONE = ["wandb", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mlflow", "trackio"))]


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k != "samples" and "second" not in k}


def test_configuration_rows_and_samples(fake: Fake) -> None:
    assert train("a", *RUN, f"save.log={fake.__name__}") == 0
    assert fake.open == 0 and [what for _, what, _ in fake.given] == ["init", *["row"] * 5, "finish"]
    config = {k: str(v) for k, v in fake.given[0][2]["config"].items()}
    assert config["steps"] == "4" and config["method.name"] == "grpo" and config["optim.lr"] == "0.0001"
    assert [step for step, _ in fake.rows()] == [0, 1, 2, 3, 4]
    logged = [{"step": step, **numbers(row)} for step, row in fake.rows()]
    assert logged == [{k: v for k, v in row.items() if v is not None} for row in metrics("a")]
    tables = {step: row["samples"] for step, row in fake.rows() if "samples" in row}
    assert list(tables) == [0, 2, 4]  # at each evaluation
    _, columns, data = tables[4]
    assert columns == ["step", "prompt", "reference", "answer", "reward", "status"] and len(data) == 3
    for step, prompt, reference, answer, reward, status in data:
        left, right = prompt.rstrip("=").split("+")
        assert (step, reference, status) == (4, str(int(left) + int(right)), "ok")
        assert reward == float(answer.strip() == reference)


def test_no_step_comes_twice_after_a_kill(fake: Fake) -> None:
    """Steps 0 to 4 were logged, and the run goes on from the checkpoint of step 3."""
    killed_in_last_step(f"save.log={fake.__name__}")
    assert [step for step, _ in fake.rows()] == [0, 1, 2, 3, 4]
    assert gruppo("train", "--resume", "runs/b") == 0
    assert [step for step, _ in fake.rows()] == [0, 1, 2, 3, 4, 5, 6]
    assert len({key for key, _, _ in fake.given}) == 1 and fake.open == 0  # one run over there
    first, last = (how for _, what, how in fake.given if what == "finish")
    assert first != last or fake.__name__ == "trackio"  # the first did not come to its end


@pytest.mark.parametrize("fake", ONE, indirect=True)
def test_a_logger_that_comes_later_gets_the_rows_so_far(fake: Fake) -> None:
    killed_in_last_step()
    assert gruppo("train", "--resume", "runs/b", f"save.log={fake.__name__}", "--allow-changes") == 0
    assert [step for step, _ in fake.rows()] == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("fake", ONE, indirect=True)
def test_a_logger_that_fails_does_not_end_the_run(fake: Fake, capsys: pytest.CaptureFixture[str]) -> None:
    fake.refusing = 2
    assert train("a", *RUN, f"save.log={fake.__name__}") == 0
    assert [step for step, _ in fake.rows()] == [0, 1, 2, 3, 4]  # they waited
    assert capsys.readouterr().out.count(f"{fake.__name__} takes no rows (no answer)") == 1
    fake.refusing = 99
    assert train("b", *RUN, f"save.log={fake.__name__}") == 0
    assert f"5 rows were not logged by {fake.__name__}" in capsys.readouterr().out


def test_a_logger_that_cannot_be_started_is_told(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ConnectionError("no answer")

    for name in ("init", "MlflowClient"):
        monkeypatch.setattr(fake, name, broken)
    assert train("a", *RUN, f"save.log={fake.__name__}") == 2
    assert f"save.log={fake.__name__} cannot be started (no answer)" in capsys.readouterr().err


@pytest.mark.parametrize("fake", ["wandb"], indirect=True)
def test_wandb_without_a_key_is_offline(monkeypatch: pytest.MonkeyPatch, fake: Fake) -> None:
    assert train("a", *RUN, "steps=1", "save.log=wandb") == 0
    assert fake.given[0][2]["mode"] == "offline" and fake.given[0][2]["dir"] == "runs/a"
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert train("b", *RUN, "steps=1", "save.log=wandb") == 0
    assert fake.given[-4][2]["mode"] is None


def test_what_is_unknown_or_not_installed_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("a", *RUN, "save.log=wandbb") == 2
    assert "save.log=wandbb: there is no such logger (nearest: wandb)" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert train("a", *RUN, "save.log=wandb") == 2
    assert "pip install 'gruppo[loggers]'" in capsys.readouterr().err
    assert not Path("runs/a").exists()


# the real ones


def real(name: str, *settings: str) -> None:
    pytest.importorskip(name)
    killed_in_last_step(f"save.log={name}", *settings)
    assert gruppo("train", "--resume", "runs/b") == 0


def test_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    real("mlflow", "eval.samples=2")
    client = mlflow.MlflowClient(f"sqlite:///{Path('runs/mlflow.db').resolve()}")
    [run] = client.search_runs([client.get_experiment_by_name("gruppo").experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "b" and run.data.params["steps"] == "6"
    rows = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "reward")}
    assert rows == {row["step"]: row["reward"] for row in metrics("b") if "reward" in row}
    assert len(client.get_metric_history(run.info.run_id, "reward")) == 6
    assert {m.step for m in client.get_metric_history(run.info.run_id, "held_out/pass_at_2")} == {0, 2, 4, 6}
    assert [f.path for f in client.list_artifacts(run.info.run_id, "samples")] == [
        f"samples/step-{step:06d}.json" for step in (0, 2, 4, 6)
    ]
    assert not Path("mlruns").exists()


def test_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    steps, plain = list[tuple[int, bool]](), wandb.Run.log

    def log(self: Any, row: dict[str, Any], step: int) -> None:
        steps.append((step, "samples" in row))
        plain(self, row, step=step)

    monkeypatch.setattr(wandb.Run, "log", log)
    real("wandb")
    assert steps == [(step, step % 2 == 0) for step in range(7)]
    parts = sorted(Path("runs/b/wandb").glob("offline-run-*"))
    assert len(parts) == 2 and len({p.name.rpartition("-")[2] for p in parts}) == 1  # two processes, one id
    assert [len(list(part.rglob("samples_*.table.json"))) for part in parts] == [3, 1]


def test_trackio(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own: trackio reads TRACKIO_DIR when it is imported."""
    pytest.importorskip("trackio")
    code = "from gruppo.cli import main; raise SystemExit(main())"
    env = {**os.environ, "PYTHONPATH": SRC, "TRACKIO_DIR": str(Path("tracked").resolve())}
    for settings in (("steps=3", "save.log=trackio"), ("--resume", "steps=6", "--allow-changes")):
        where = ("runs/b",) if settings[0] == "--resume" else ()
        own = () if where else (*SMALL, *RUN, "save.name=b")
        words = ("train", *own, *settings[:1], *where, *settings[1:])
        assert subprocess.run([sys.executable, "-c", code, *words], env=env).returncode == 0
    read = "from trackio.sqlite_storage import SQLiteStorage as s; import json\n"
    read += "[run] = s.get_runs('gruppo'); print(json.dumps([run, s.get_logs('gruppo', run)]))"
    said = subprocess.run([sys.executable, "-c", read], env=env, capture_output=True, text=True).stdout
    name, rows = json.loads(said.splitlines()[-1])
    assert name.startswith("b-") and [row["step"] for row in rows] == list(range(7))
    assert [row["reward"] for row in rows[1:]] == [row["reward"] for row in metrics("b")[1:]]
    assert [row["step"] for row in rows if "samples" in row] == [0, 2, 3, 4, 6]
