"""What a run depends on: worlds, agents and rewards of the user, all that they import, versions of libraries."""

import importlib.metadata
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from train_runs import gruppo, refused

from gruppo.tasks.settings import TaskConfig
from gruppo.train import depends as module
from gruppo.train.config import RunConfig
from gruppo.train.depends import depends, differences
from gruppo.train.folder import RunFolder

WORLD = """
from gruppo.envs.base import Seen
from helper import REWARD

class World:
    def reset(self, task):
        return Seen("say a", state="0")

    def step(self, action):
        return Seen("over", state="1", rewards={"task": REWARD}, done=True)
"""
ROW = {"env": "./mine.py:World", "prompt": "say a"}
MAKE = "from gruppo.tasks import TaskSet\n\ndef make():\n    return TaskSet('x', [], [], '', 4, env={!r})\n"


def own_world(folder: str = ".") -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, "mine.py").write_text(WORLD)
    Path(folder, "helper.py").write_text("import deep\nREWARD = 1.0\n")
    Path(folder, "deep.py").write_text("")
    Path(folder, "other.py").write_text("")


def levels(*rows: dict[str, object], file: str = "levels.jsonl") -> str:
    Path(file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"./{file}"


def in_levels() -> TaskConfig:
    return TaskConfig(levels({"env": "guess"}, ROW))


def in_held_out_levels() -> TaskConfig:
    return TaskConfig(levels({"env": "guess"}), held_out=levels(ROW, file="held.jsonl"))


def in_a_task_set() -> TaskConfig:
    Path("tasks.py").write_text(MAKE.format("./mine.py:World"))
    return TaskConfig("./tasks.py:make")


def in_a_module_beside_a_task_set() -> TaskConfig:
    Path("names.py").write_text("WORLDS = ['./mine.py:World']\n")
    Path("tasks.py").write_text("from names import WORLDS\n")
    return TaskConfig("./tasks.py:make")


def in_an_agent() -> TaskConfig:
    Path("agent.py").write_text("def play(task, ask):\n    make_env('./mine.py:World')\n")
    return TaskConfig("guess", agent="./agent.py:play")


def as_the_task() -> TaskConfig:
    return TaskConfig("./mine.py:World")


WAYS = (in_levels, in_held_out_levels, in_a_task_set, in_a_module_beside_a_task_set, in_an_agent, as_the_task)


def changed(task: TaskConfig, file: str) -> list[str]:
    before = depends(RunConfig(task=task))
    Path(file).write_text(Path(file).read_text() + "\n# another one\n")
    return differences(before, depends(RunConfig(task=task)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("file", ["mine.py", "helper.py", "deep.py"])
def test_an_own_world_and_what_it_imports_are_hashed_however_it_is_named(
    way: Callable[[], TaskConfig], file: str
) -> None:
    own_world()
    task = way()
    assert [line.partition(":")[0] for line in changed(task, "other.py")] == []  # which nothing imports
    (line,) = changed(task, file)
    assert f"({file}): " in line and line.startswith("task")


@pytest.mark.parametrize("file", ["worlds/mine.py", "worlds/near.py", "worlds/__init__.py", "base/deep.py"])
def test_a_world_of_a_package_by_its_import_path(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found without being imported: neither the module, nor the package around it."""
    for name in ("worlds", "base"):
        Path(name).mkdir()
        Path(name, "__init__.py").write_text("raise RuntimeError('it was imported')")
    Path("worlds/mine.py").write_text("from .near import X\nfrom . import nothing")
    Path("worlds/near.py").write_text("import base.deep")
    Path("base/deep.py").write_text("from worlds import mine")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    task = TaskConfig(levels({"env": "worlds.mine:World", "prompt": "p"}))
    (line,) = changed(task, file)
    assert line.startswith("task, worlds.mine:World")
    assert not {"worlds", "base"} & sys.modules.keys()


@pytest.mark.parametrize("file", ["a/mine.py", "a/deep.py", "b/mine.py", "b/helper.py", "kit/near.py", "base/deep.py"])
def test_tools_and_what_they_import(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files, two of one name included, and of a package. Those of gruppo are no files of the user."""
    own_world("a")
    own_world("b")
    for path, text in {
        "kit/mine.py": "from .near import X",
        "kit/near.py": "import base.deep",
        "base/deep.py": "",
    }.items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(text)
        Path(path).with_name("__init__.py").touch()
    monkeypatch.syspath_prepend(str(Path.cwd()))
    task = TaskConfig("addition", tools="calculator, ./a/mine.py:TOOLS,./b/mine.py:TOOLS,kit.mine:TOOLS")
    assert changed(task, "a/other.py") == []  # which nothing imports
    (line,) = changed(task, file)
    folder = Path(file).parts[0]
    where = f"./{folder}/mine.py:TOOLS" if folder in "ab" else "kit.mine:TOOLS"
    assert line.startswith(f"task.tools, {where}") and Path(file).name in line


@pytest.mark.parametrize("by", ["importlib.import_module('{}')", "import_module('{}', None)", "__import__('{}')"])
def test_what_is_imported_by_a_call_is_hashed_if_its_name_is_written_there(by: str) -> None:
    """A name that is computed while the code runs is not known before."""
    lines = (
        "import importlib",
        "from importlib import import_module",
        "def f(task, text):",
        "    import_module('.x', 'y')",
    )
    Path("mine.py").write_text("\n".join([*lines, f"    return {by.format('helper')}.REWARD", ""]))
    Path("helper.py").write_text(f"REWARD = {by.format('deep.er')}.REWARD\nimport_module(str(REWARD))\n")
    Path("deep").mkdir()
    for name in ("deep/__init__.py", "deep/er.py", "other.py"):
        Path(name).write_text("REWARD = 1.0\n")
    task = TaskConfig("addition", reward="./mine.py:f")
    assert changed(task, "other.py") == []
    for file in ("mine.py", "helper.py", "deep/__init__.py", "deep/er.py"):
        (line,) = changed(task, file)
        assert f"({file}): " in line


def test_two_worlds_of_one_name_are_two() -> None:
    own_world("a")
    own_world("b")
    task = TaskConfig(levels({"env": "./a/mine.py:World", "prompt": "p"}, {"env": "./b/mine.py:World", "prompt": "p"}))
    for which in "ab":
        for file in ("mine.py", "helper.py"):
            (line,) = changed(task, f"{which}/{file}")
            assert line.startswith(f"task, ./{which}/mine.py:World")


@pytest.mark.parametrize(
    ("task", "package"),
    [
        (TaskConfig("env:gymnasium/FrozenLake-v1"), "gymnasium"),
        (TaskConfig("env:minigrid/X"), "minigrid"),
        (TaskConfig("env:minigrid/X"), "gymnasium"),
        (TaskConfig("env:textarena/X"), "textarena"),
        (TaskConfig("gym:chain_sum"), "reasoning_gym"),
    ],
)
def test_another_version_of_the_library_behind_a_world(
    task: TaskConfig, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.0")
    before = depends(RunConfig(task=task))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.1" if name == package else "1.0")
    assert differences(before, depends(RunConfig(task=task))) == [f"task, library ({package}): 1.0 → 1.1"]


def test_a_library_in_levels_and_in_a_task_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"{name} 7")
    Path("tasks.py").write_text(MAKE.format("env:textarena/X"))
    for task in (TaskConfig(levels({"env": "env:textarena/X", "prompt": "p"})), TaskConfig("./tasks.py:make")):
        assert depends(RunConfig(task=task))["task, library (textarena)"] == "textarena 7"


def test_every_adapter_has_its_packages() -> None:
    from gruppo.envs.adapters import ADAPTERS

    assert module.LIBRARIES.keys() == ADAPTERS.keys()


def test_a_reward_of_an_installed_package_has_its_version() -> None:
    known = depends(RunConfig(task=TaskConfig("addition", reward="pytest:approx")))
    assert known["task, library (pytest)"] == pytest.__version__
    assert not [name for name in known if "imported" in name]


def test_built_in_tasks_depend_on_gruppo_alone() -> None:
    for name in ("addition", "guess", "mix:lake+addition@1-2"):
        assert depends(RunConfig(task=TaskConfig(name))).keys() == {"gruppo", "torch"}


@pytest.mark.parametrize("file", ["mine.py", "helper.py"])
def test_a_changed_world_is_refused_on_resume(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    own_world()
    folder = RunFolder(Path("runs/b"))
    folder.write_config(RunConfig(task=TaskConfig(levels(ROW))))
    Path(file).write_text(Path(file).read_text().replace("1", "2"))
    words = refused(capsys, "train", "--resume", "runs/b")
    assert "task, ./mine.py:World" in words and f"({file}): " in words and "--allow-changes" in words


def test_with_allow_changes_it_goes_on_and_the_change_is_a_part_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    world = WORLD.replace("from helper import REWARD", "REWARD = 1.0")
    Path("mine.py").write_text(world)
    RunFolder(Path("runs/b")).write_config(RunConfig(task=TaskConfig(levels(*(ROW | {"seed": i} for i in range(12))))))
    Path("mine.py").write_text(world.replace("1.0", "0.5"))
    small = ("steps=1", "prompts=2", "samples=2", "eval.prompts=2", "save.tensorboard=no", "threads=1")
    assert gruppo("train", "--resume", "runs/b", "--allow-changes", *small) == 0
    assert gruppo("train", "--resume", "runs/b") == 0
    assert "runs/b is finished" in capsys.readouterr().out
    Path("mine.py").write_text(world)
    assert "task, ./mine.py:World (mine.py): " in refused(capsys, "train", "--resume", "runs/b")
