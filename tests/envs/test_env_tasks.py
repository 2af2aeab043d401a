"""Environments are tasks: by name and level, with options, mixed, in files of levels, and in task sets of your own."""

import json
from dataclasses import replace
from pathlib import Path

import bad_worlds
import pytest

from gruppo.envs import BUILT_IN, env_class, make_env, play
from gruppo.envs.adapters import ADAPTERS
from gruppo.envs.check import LAWS
from gruppo.tasks import Task, TaskSet, family, load_task
from gruppo.tasks.stored import read, written

SOKOBAN = {"env": "sokoban", "turns": 12, "board": ["#####", "#@$.#", "#####"]}
LONGER = {"env": "sokoban", "level": 2, "board": ["######", "#@$ .#", "######"]}
NUMBER = {"env": "guess", "low": 1, "high": 9, "secret": 5, "turns": 4}


def levels(folder: Path, *rows: dict) -> str:
    path = folder / "levels.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_world_is_a_task(name: str) -> None:
    tasks = load_task(name)
    assert (tasks.env, tasks.scorer, tasks.name) == (name, "", name)
    assert len(tasks.train) and len(tasks.held_out)
    task = tasks.train[0]
    assert task.meta["env"] == name and task.domain == f"{name}/{env_class(name).default}"
    assert make_env(name).reset(task).text
    assert family(name).levels == tuple(env_class(name).levels)
    assert load_task(name, seed=1).train[0] == load_task(name, seed=1).train[0]


def test_levels_and_seeds() -> None:
    tasks = load_task("household", level="1-2", seed=4)
    assert [tasks.train[i].level for i in range(4)] == [1, 2, 1, 2] and tasks.levels == (1, 2)
    assert tasks.train[0] != load_task("household", level="1-2", seed=5).train[0]
    with pytest.raises(ValueError, match="levels 1 to 4"):
        load_task("household", level=5)


def test_options_of_a_world() -> None:
    task = load_task("lake", level=2, slippery=True, turns=20).train[0]
    assert task.meta["facts"]["slippery"] is True and task.meta["facts"]["turns"] == 20
    with pytest.raises(ValueError, match="Did you mean 'slippery'"):
        load_task("lake", slipery=True)
    with pytest.raises(ValueError, match="no whole number >= 1"):
        load_task("lake", turns=0)
    with pytest.raises(ValueError, match="neither true nor false"):
        load_task("lake", slippery=1)
    with pytest.raises(ValueError, match="no task of level 1 was found"):
        load_task("household", turns=2)
    with pytest.raises(ValueError, match=r"task\.args"):
        load_task("lake", args={"x": 1})


def test_worlds_can_be_mixed_with_each_other_and_with_other_tasks() -> None:
    tasks = load_task("mix:household@1-2+kuhn")
    assert tasks.env == "household+kuhn" and tasks.scorer == ""
    assert {tasks.train[i].meta["env"] for i in range(4)} == {"household", "kuhn"}
    both = load_task("mix:lake+addition")
    assert both.env == "lake" and str(both.scorer) == "gruppo.tasks.mixture:BySource"
    assert ["env" in both.train[i].meta for i in range(2)] == [True, False]


def test_names_of_worlds_are_suggested() -> None:
    with pytest.raises(ValueError, match="Did you mean 'household'"):
        load_task("houshold")


def test_a_file_of_levels(tmp_path: Path) -> None:
    tasks = load_task(levels(tmp_path, SOKOBAN, LONGER, NUMBER), held_out=0.34)
    assert set(tasks.env.split("+")) <= {"sokoban", "guess"} and len(tasks.train) == 2 and len(tasks.held_out) == 1
    every = {t.meta["env"]: t for t in [*tasks.train, *tasks.held_out]}
    assert every["guess"].prompt == "guess number from 1 to 9" and every["guess"].answer == "5"
    assert play(make_env("guess"), every["guess"], ["5"])[-1].rewards == {"task": 1.0}
    assert tasks.digest != load_task(levels(tmp_path, SOKOBAN, NUMBER), held_out=0.5).digest
    assert load_task(levels(tmp_path, SOKOBAN, LONGER, NUMBER), held_out=0.34) == tasks


def test_held_out_levels_in_a_file_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "held.jsonl").write_text(json.dumps(SOKOBAN) + "\n")
    tasks = load_task(levels(tmp_path, SOKOBAN, LONGER), held_out=str(tmp_path / "held.jsonl"))
    assert [t.prompt for t in tasks.train] == ["push box to 1 4"] and len(tasks.held_out) == 1


def test_levels_of_an_own_world(tmp_path: Path) -> None:
    path = f"{bad_worlds.__file__}:Good"
    rows = [{"env": path, "prompt": f"say stop {i}", "seed": i} for i in range(3)]
    tasks = load_task(levels(tmp_path, *rows))
    assert tasks.env == path and tasks.train[0].meta["facts"].keys() == {"seed"}
    assert play(make_env(tasks.train[0].meta["env"]), tasks.train[0], ["stop"])[-1].rewards == {"task": 1.0}


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ({**SOKOBAN, "env": "sokobann"}, "Did you mean 'sokoban'"),
        ({**SOKOBAN, "board": ["#####", "#@ .#", "#####"]}, "at least one \\$"),
        ({**SOKOBAN, "board": ["#####", "#@$?#", "#####"]}, "the board has '\\?'"),
        ({**SOKOBAN, "board": 3}, "board=3 is int"),
        ({"env": "sokoban", "bord": []}, "Did you mean 'bord'"),
        ({**NUMBER, "secret": 12}, "12 is not between"),
        ({**NUMBER, "turns": 0}, "turns=0"),
        ({**NUMBER, "level": "x"}, "level='x'"),
        (
            {"env": "household", "start": "hall", "places": {}, "things": {}, "goals": [], "doors": []},
            "there is no goal",
        ),
        ({"env": "shop", "goods": [{}], "want": {}}, "cannot build this level"),
        ({"env": f"{bad_worlds.__file__}:Good"}, "Add the field prompt"),
    ],
)
def test_a_level_that_cannot_be_built_is_refused_with_its_line(tmp_path: Path, row: dict, part: str) -> None:
    with pytest.raises(ValueError, match=f"levels.jsonl, line 2: .*{part}"):
        load_task(levels(tmp_path, SOKOBAN, row))


def test_a_task_set_needs_a_scorer_or_an_environment() -> None:
    tasks = [Task("a", "p", "", 1, "x")]
    with pytest.raises(ValueError, match="no scorer and no env"):
        TaskSet("x", tasks, [], "", 8)
    assert TaskSet("x", tasks, [], "", 8, env="lake").env == "lake"


def test_a_stored_task_set_keeps_its_environment(tmp_path: Path) -> None:
    made = load_task("lake", train_size=3, held_out_size=2)
    small = replace(made, train=list(made.train), held_out=list(made.held_out))
    (tmp_path / "tasks.jsonl").write_text(written(small))
    assert read(tmp_path / "tasks.jsonl").env == "lake"


def test_a_task_without_facts_is_refused_by_the_world() -> None:
    with pytest.raises(ValueError, match=r"no meta\['facts'\]"):
        make_env("lake").reset(Task("a", "p", "", 1, "x"))


def test_the_page_names_every_world_law_and_adapter() -> None:
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
    for name in (*BUILT_IN, *(law.name for law in LAWS)):
        assert f"| `{name}` |" in page
    assert all(f"`env:{name}/" in page for name in ADAPTERS)
