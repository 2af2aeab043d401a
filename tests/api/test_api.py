"""From Python as from the command line: the same runs, in a running event loop too, and objects as files."""

import asyncio
import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from train_runs import contents, metrics, same_run, straight
from warm import SRC, command

import gruppo
from gruppo.cli import main
from gruppo.stages.credit import GroupNormalised
from gruppo.tasks import TaskConfig, load_task
from gruppo.train.config import RunConfig
from gruppo.train.learner import OptimConfig

SMALL: dict[str, Any] = {"prompts": 4, "samples": 4, "threads": 1, "quiet": True, "steps": 2}
SMALL |= {"eval": {"prompts": 8, "every": 4}, "save": {"episodes_every": 4, "tensorboard": "no"}}
PLAIN = ("steps=2",)  # with the settings of train_runs, which are those above


def named(name: str, **changes: Any) -> dict[str, Any]:
    return {**SMALL, "save": {**SMALL["save"], "name": name}, **changes}


def in_a_loop(work: Callable[[], Any]) -> Any:
    """As in a notebook: the thread that calls is running an event loop."""

    async def cell() -> Any:
        asyncio.get_running_loop()
        return work()

    return asyncio.run(cell())


def plainly(work: Callable[[], Any]) -> Any:
    return work()


# Without a loop the other tests here call everything: with the slow tests once more.
AROUND = [in_a_loop, pytest.param(plainly, marks=pytest.mark.slow)]


# importing


def test_importing_is_light_and_every_name_is_there() -> None:
    code = "import sys, gruppo; assert 'torch' not in sys.modules; from gruppo import train; gruppo.Task\n"
    code += "assert 'torch' not in sys.modules, 'the tasks are light too'\n"
    code += "assert all(getattr(gruppo, n) is not None for n in gruppo._WHERE) and 'train' in dir(gruppo)\n"
    code += "import gruppo.train.trainer; assert gruppo.train is train and callable(train)\n"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": SRC})
    with pytest.raises(AttributeError, match=r"has no attribute 'trian'. It has: .*train"):
        _ = gruppo.trian  # type: ignore[attr-defined]
    stub = Path(gruppo.__file__).with_suffix(".pyi").read_text()
    assert {line.split(" as ")[1] for line in stub.splitlines() if " as " in line} == set(gruppo._WHERE)  # type: ignore


# the same runs


@pytest.mark.parametrize("around", [plainly, in_a_loop])
def test_a_run_is_that_of_the_command_line(around: Callable[..., Any]) -> None:
    run = around(lambda: gruppo.train("grpo", task="addition", **named("b")))
    straight(*PLAIN)
    same_run("a", "b")
    assert run.finished and run.folder == Path("runs/b") and run.policy == Path("runs/b/policy")
    assert run.summary["accuracy_after"] == run.metrics()[-1]["held_out"]


@pytest.mark.parametrize("around", AROUND)
def test_steps_can_be_left_and_resumed(around: Callable[..., Any]) -> None:
    def work() -> Any:
        seen = []
        for step in gruppo.steps("grpo", **named("b")):
            seen.append((step.done, step.row["step"], len(step.record.episodes), step.folder))
            break
        assert seen == [(1, 1, 16, Path("runs/b"))]
        left = gruppo.load("runs/b")
        assert not left.finished and left.summary["stopped"] and "1 steps done, not finished" in repr(left)
        with pytest.raises(ValueError, match="runs/b has no policy"):
            _ = left.policy
        return left.resume(quiet=True)

    run = around(work)
    straight(*PLAIN)
    same_run("a", "b")
    assert run.finished


def test_a_resumed_run_step_by_step() -> None:
    settings = named("b") | {"steps": 4}
    for _ in gruppo.steps("grpo", **settings):
        break
    done = []
    for _ in range(4):  # left after each step, and gone on with
        for step in gruppo.resume_steps("runs/b"):
            done.append((step.done, step.folder))
            break
    assert [n for n, _ in done] == [2, 3, 4] and done[0][1] == Path("runs/b")
    run = gruppo.resume("runs/b", quiet=True)  # the loop was left at its last step, before the end
    assert run.finished and list(gruppo.resume_steps(run)) == []
    straight(*PLAIN, "steps=4")
    same_run("a", "b")
    with pytest.raises(ValueError, match="steps: 4 → 9"):
        list(gruppo.resume_steps("runs/b", steps=9))


def test_all_steps() -> None:
    assert [s.done for s in gruppo.steps("grpo", **named("b"))] == [1, 2]
    straight(*PLAIN)
    same_run("a", "b")


# settings


def test_settings_in_every_form() -> None:
    forms: list[dict[str, Any]] = [
        {"optim": {"lr": 3e-4}},
        {"optim.lr": 3e-4},
        {"optim.lr": "3e-4"},
        {"optim": OptimConfig(lr=3e-4)},
    ]
    configs = [gruppo.configured("dapo", steps=7, **form) for form in forms]
    assert all(c == configs[0] for c in configs) and configs[0].optim.lr == 3e-4 and configs[0].steps == 7
    assert configs[0].method == gruppo.method("dapo") and gruppo.configured(configs[0]) == configs[0]
    more = gruppo.configured("grpo", **{"method.select+": "top_entropy", "method.credit.eps": 1e-4})
    assert [type(o).__name__ for o in more.method.select] == ["TopEntropy"] and more.method.credit.eps == 1e-4
    by_task = gruppo.configured(task=TaskConfig("sorting", level="1"))
    assert by_task == gruppo.configured(task={"name": "sorting", "level": "1"})
    rows = [{"q": "1+1=", "answer": 2}]
    by_rows = gruppo.configured(task={"name": rows, "prompt": "q"})
    assert by_rows == gruppo.configured(task=rows, **{"task.prompt": "q"}) and by_rows.task.prompt == "q"
    assert gruppo.configured() == RunConfig()


@pytest.mark.parametrize("settings, said", [
    ({"step": 3}, "a run has no 'step'"),
    ({"optim": {"learning_rate": 1}}, "OptimConfig has no 'learning_rate'"),
    ({"steps": "many"}, "steps=many is not a whole number"),
    ({"steps": 0}, "steps=0"),
    ({"method": "grop"}, "grop"),
    ({"callbacks": [print]}, "which is no callback"),
    ({"callbacks": gruppo.Callback}, "is no list, so nothing was started. Write callbacks=[…]"),
    ({"callbacks": gruppo.Callback()}, "is no list, so nothing was started. Write callbacks=[…]"),
    ({"task": 3}, "task is int and no task"),
    ({"task": []}, "task is an empty list"),
    ({"task": [{"prompt": {1}}]}, "row 0: prompt holds what a file cannot"),
    ({"task": [{"prompt": "a", "answer": float("nan")}]}, "row 0: answer holds what a file cannot"),
])  # fmt: skip
def test_mistakes_are_told_before_anything_starts(settings: dict[str, Any], said: str) -> None:
    for start in (gruppo.train, gruppo.steps):
        with pytest.raises(ValueError) as told:
            start(**settings)
        assert said in str(told.value)
    assert not Path("runs").exists()


@pytest.mark.parametrize("entrants", ["grpo", Path("runs/a"), gruppo.method("grpo")])
def test_one_entrant_is_no_list_of_letters(entrants: Any) -> None:
    with pytest.raises(ValueError, match="is one entrant and no list, so nothing was started"):
        gruppo.compare(entrants, task="addition")


@pytest.mark.parametrize(
    "call", [gruppo.load, gruppo.resume, gruppo.evaluate, lambda run: list(gruppo.resume_steps(run))]
)
def test_what_is_no_run_is_told(call: Callable[[Any], Any]) -> None:
    for wrong in (3, None, ["runs/a"]):
        with pytest.raises(ValueError, match="is no run, so nothing was done"):
            call(wrong)


def test_a_long_value_does_not_hide_what_is_wrong_with_it() -> None:
    with pytest.raises(ValueError, match="is not text, so nothing was started") as told:
        gruppo.configured(model={"name": [{"q": "1+1="}] * 1000})
    assert len(str(told.value)) < 200


def test_nothing_started_is_said_without_the_command_line() -> None:
    with pytest.raises(ValueError) as told:
        gruppo.train("grpo", samples=1)
    assert str(told.value).endswith("Nothing was started: once that is fixed, start it again.")


# objects


def short(task: Any, text: str, most: int = 3) -> dict[str, float]:
    return {"task": float(text.strip() == task.answer), "short": 0.1 * (len(text) <= most)}


def local_reward() -> Callable[..., Any]:
    def short(task: Any, text: str, most: int = 3) -> dict[str, float]:
        return {"task": float(text.strip() == task.answer), "short": 0.1 * (len(text) <= most)}

    return short


ROWS = [{"question": f"{a}+{b}=", "answer": a + b, "level": 1} for a in range(2, 8) for b in range(2, 8)]


def test_a_reward_without_a_file_is_that_of_a_file() -> None:
    gruppo.train(reward=local_reward(), **named("b"))
    Path("reward.py").write_text(f"from typing import Any\n{inspect.getsource(short)}")
    assert main(["train", *words("a"), "task.reward=./reward.py:short"]) == 0
    assert metrics("a") == metrics("b") and contents(Path("runs/a/policy")) == contents(Path("runs/b/policy"))
    table = tomllib.loads(Path("runs/b/config.toml").read_text())
    path = table["task"]["reward"]
    assert path.startswith(f"{Path.cwd().as_posix()}/runs/from_python/short_") and path.endswith(".py:short")
    known = json.loads(Path("runs/b/environment.json").read_text())["depends"]
    assert any(k.startswith("task.reward (short_") for k in known)


def test_objects_are_found_from_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their files have whole paths: a run is resumed from wherever it can be named."""
    for name, last in (("a", 2), ("b", 1)):
        for step in gruppo.steps("grpo", task=ROWS, reward=local_reward(), **named(name)):
            if step.done == last:
                break
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    code, said = command("train", "--resume", "../runs/b")
    assert code == 0, said
    gruppo.resume("../runs/a", quiet=True)
    monkeypatch.chdir("..")
    assert metrics("a") == metrics("b") and contents(Path("runs/a/policy")) == contents(Path("runs/b/policy"))


def test_a_moved_run_is_itself() -> None:
    """The summary names the folder in which it was written."""
    straight(*PLAIN)
    shutil.copytree("runs/a", "runs/copy")
    for folder in ("runs/copy", gruppo.load("runs/copy")):
        assert gruppo.resume(folder, quiet=True).folder == Path("runs/copy")
    shutil.move("runs/a", "moved")
    assert gruppo.resume("moved", quiet=True).metrics()[-1]["step"] == 2


def words(name: str) -> list[str]:
    return ["steps=2", "prompts=4", "samples=4", "eval.prompts=8", "eval.every=4", "save.episodes_every=4",
            "save.tensorboard=no", "threads=1", f"save.name={name}"]  # fmt: skip


def test_a_reward_that_hangs_is_killed() -> None:
    def hangs(task: Any, text: str) -> float:
        import time

        time.sleep(600 if text.endswith("1") else 0)
        return 0.0

    begun = time.monotonic()
    run = gruppo.train(reward=hangs, **named("b", max_failures=1.0, **{"task.seconds": 0.3, "task.workers": 2}))
    assert run.finished and time.monotonic() - begun < 60


def local_occupant() -> type:
    @dataclass(frozen=True)
    class Scaled(GroupNormalised):
        """Advantages times a number."""

        scale: float = 1.0

        def __call__(self, ctx: Any, batch: Any) -> Any:
            return {k: self.scale * v for k, v in GroupNormalised.__call__(self, ctx, batch).items()}

    return Scaled


OWN_FILE = """
from dataclasses import dataclass
from gruppo.stages.credit import GroupNormalised

@dataclass(frozen=True)
class Scaled(GroupNormalised):
    scale: float = 1.0

    def __call__(self, ctx, batch):
        return {k: self.scale * v for k, v in super().__call__(ctx, batch).items()}
"""


# A class of a file is stored with the run as in tests/cli/test_own_method.py and test_resume_refused.py.
@pytest.mark.parametrize("in_a_file", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_method_and_rows_are_resumed_by_another_process(in_a_file: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line does not find modules of the folder in which it is called, and needs none."""
    Path("my_occupants.py").write_text(OWN_FILE)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    cls: Any = importlib.import_module("my_occupants").Scaled if in_a_file else local_occupant()
    mine = gruppo.method("grpo").but(name="mine", credit=cls(scale=2.0))
    for name, last in (("a", 3), ("b", 1)):
        for step in gruppo.steps(mine, task=ROWS, **named(name, steps=3)):
            if step.done == last:
                break
    assert gruppo.load("runs/b").config.method.credit.scale == 2.0
    assert list(Path("runs/b/code").glob("*.py"))  # the run has a copy
    code, said = command("train", "--resume", "runs/b")
    assert code == 0, said
    gruppo.resume("runs/a", quiet=True)
    assert metrics("a") == metrics("b") and contents(Path("runs/a/policy")) == contents(Path("runs/b/policy"))


def test_a_method_of_another_class_is_another_run() -> None:
    """Rebuilt from its file, an occupant has the values of the object, and a method without own classes is itself."""
    grpo = gruppo.method("grpo")
    assert gruppo.configured(grpo).method is grpo and not Path("runs").exists()
    made = gruppo.configured(grpo.but(name="mine", credit=local_occupant()(eps=0.5, scale=3.0))).method
    assert (made.credit.eps, made.credit.scale, type(made.credit).__module__[:12]) == (0.5, 3.0, "gruppo_user_")
    assert made.but(credit=grpo.credit, name="grpo", base=grpo.base).objective == grpo.objective


def test_a_task_set_is_the_same_set() -> None:
    made = load_task("countdown", level=1, train_size=30, held_out_size=20)  # its tasks hold tuples
    config = gruppo.configured(task=made)
    again = load_task(config.task.name)
    assert [again.train[i] for i in range(30)] == [made.train[i] for i in range(30)]
    assert [again.held_out[i] for i in range(20)] == [made.held_out[i] for i in range(20)]
    assert (again.name, str(again.scorer), again.max_tokens, again.levels) == (
        made.name, str(made.scorer), made.max_tokens, made.levels,
    )  # fmt: skip
    gruppo.train(task=load_task("addition", train_size=50), **named("b"))
    gruppo.train(task={"name": "addition", "train_size": 50}, **named("a"))
    assert metrics("a") == metrics("b") and contents(Path("runs/a/policy")) == contents(Path("runs/b/policy"))


# reading


def test_tables_and_curves() -> None:
    straight(*PLAIN)
    run = gruppo.load("runs/a")
    assert [row["step"] for row in run.metrics()] == [0, 1, 2] and list(run.frame().index) == [0, 1, 2]
    rows = run.episodes()
    assert len(rows) == len(run.episodes(2)) == len(run.episode_frame([2])) == 16
    assert {"prompt", "answer", "reward", "advantage"} <= set(rows[0]) and "reward/task" in run.episode_frame().columns
    assert run.curves()._repr_png_()[:4] == b"\x89PNG" and run.curves().axes[0].lines
    assert run.config.steps == 2
    with pytest.raises(ValueError, match=r"has no best/policy: it is kept with save\.best=true"):
        _ = run.best
    with pytest.raises(ValueError, match="nothing: there is no such run or folder"):
        gruppo.load("nothing")


@pytest.mark.parametrize("around", AROUND)
def test_evaluate_is_gruppo_eval(around: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    straight(*PLAIN)
    found = around(lambda: gruppo.evaluate("runs/a", prompts=12, samples=2))
    capsys.readouterr()
    assert main(["eval", "runs/a", "eval.prompts=12", "eval.samples=2", "--json"]) == 0
    theirs = json.loads(capsys.readouterr().out)
    assert (found.accuracy, found.prompts, found.samples) == (theirs["accuracy"], 12, 2)
    run = gruppo.load("runs/a")
    assert around(lambda: run.evaluate(prompts=12, samples=2)).accuracy == found.accuracy
    other = around(lambda: gruppo.evaluate(run, task="sorting", prompts=4, reward=short, **{"task.args.most": 1}))
    assert other.prompts == 4 and "short" in other.episodes[0].reward


def test_compare_objects_and_finished_runs(capsys: pytest.CaptureFixture[str]) -> None:
    mine = gruppo.method("grpo").but(name="mine", credit=local_occupant()(scale=2.0))
    settings = {k: v for k, v in SMALL.items() if k != "save"} | {"steps": 1, "save.tensorboard": "no"}
    found = in_a_loop(lambda: gruppo.compare(["grpo optim.lr=1e-3", mine], task=ROWS, seeds=[3], **settings))
    assert found.entrants == ["grpo optim.lr=1e-3", "mine"] and found.seeds == [3] and not found.failed
    folders = [Path(r.folder) for r in found.results]
    assert len(folders) == 2 and gruppo.load(folders[1]).config.method.credit.scale == 2.0
    before = [p.stat().st_mtime_ns for p in Path("runs").rglob("summary.json")]
    again = gruppo.compare(["grpo optim.lr=1e-3", mine], task=ROWS, seeds=[3], **settings)  # nothing to do
    assert again.table() == found.table()
    assert before == [p.stat().st_mtime_ns for p in Path("runs").rglob("summary.json")]
    read = gruppo.compare([gruppo.load(f) for f in folders])
    assert len(read.results) == 2 and gruppo.compare(folders).table() == read.table()
    with pytest.raises(ValueError, match="there twice"):
        gruppo.compare(["grpo", "grpo"], **settings)
    shutil.rmtree("runs")
