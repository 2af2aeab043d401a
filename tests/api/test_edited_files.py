"""A session in which the user edits files between two runs: each run is of what stands there when it starts."""

import json
from pathlib import Path
from typing import Any

import pytest

import gruppo
from gruppo.envs.with_tools import toolbox
from gruppo.stages.record import to_table
from gruppo.tasks.imports import load_object

pytestmark = pytest.mark.usefixtures("here")
SMALL: dict[str, Any] = {"prompts": 2, "samples": 2, "threads": 1, "quiet": True, "steps": 1}
SMALL |= {"eval": {"prompts": 2, "every": 0}, "save": {"tensorboard": "no"}}


def write(name: str, text: str) -> None:
    Path(name).write_text(text)


def method_named(name: str) -> None:
    write(
        "mine.py",
        f'from gruppo.methods.grpo import GRPO\nfrom beside import NAME\n\nMINE = GRPO.but(name=NAME + "{name}")\n',
    )


def test_a_method_and_what_it_imports_from_its_folder() -> None:
    names = []
    for mine, beside in (("one", "a_"), ("two", "a_"), ("two", "b_")):  # of one size, within one second
        method_named(mine)
        write("beside.py", f'NAME = "{beside}"\n')
        names.append(gruppo.configured("./mine.py:MINE").method.name)
    assert names == ["a_one", "a_two", "b_two"]


def test_what_has_not_changed_is_the_same_object() -> None:
    method_named("one")
    write("beside.py", 'NAME = ""\n')
    write("other.py", "class Other:\n    pass\n")
    gruppo.configured("./mine.py:MINE")
    other, beside = load_object("./other.py:Other"), load_object("./beside.py:__name__")
    method_named("two")
    assert gruppo.configured("./mine.py:MINE").method.name == "two"
    assert load_object("./other.py:Other") is other and load_object("./beside.py:__name__") == beside


TOOL = '''
def look(word: str) -> str:
    """Looks a word up.

    Args:
        word: the word
    """
    return "{}"
'''


def test_tools() -> None:
    said = []
    for text in ("one", "two"):
        write("tools.py", TOOL.format(text))
        gruppo.configured()  # what every run of a session begins with
        [tool] = toolbox("./tools.py:look")
        said.append(tool.function("word"))  # type: ignore[attr-defined]
    assert said == ["one", "two"]


WORLD = """
from gruppo.envs.base import Seen

class World:
    def reset(self, task):
        return Seen("say a", state="0")

    def step(self, action):
        return Seen("over", state="1", rewards={{"task": {}}}, done=True)
"""


def test_worlds_of_a_file_of_levels() -> None:
    rows = [{"env": "./mine.py:World", "prompt": "say a", "seed": i} for i in range(4)]
    write("levels.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    seen = []
    for reward in (1.0, 0.5):
        write("mine.py", WORLD.format(reward))
        run = gruppo.train("reinforce", task={"name": "./levels.jsonl", "held_out": 0.5}, **SMALL)
        seen += [row["reward"] for row in run.metrics() if row["step"] == 1]
    assert seen == [1.0, 0.5]


OCCUPANT = """
from dataclasses import dataclass
from gruppo.methods.grpo import GRPO
from gruppo.stages.credit import GroupNormalised

@dataclass(frozen=True)
class Mine(GroupNormalised):
    extra: float = {}

MINE = GRPO.but(name="mine", credit=Mine())
"""


def test_a_method_object_of_before_is_refused_and_can_still_be_written_down() -> None:
    write("mine.py", OCCUPANT.format(1.0))
    before = gruppo.configured("./mine.py:MINE").method
    write("mine.py", OCCUPANT.format(2.0))
    assert gruppo.configured("./mine.py:MINE").method.credit.extra == 2.0
    assert to_table(before)["credit"]["kind"] == to_table(gruppo.configured("./mine.py:MINE").method)["credit"]["kind"]
    with pytest.raises(
        ValueError, match=r"mine.py has changed since Mine was loaded from it.*Name what stands there now"
    ):
        gruppo.configured(before)


def test_a_run_that_goes_on_stands_in_the_way_of_changed_files() -> None:
    write("mine.py", "from gruppo.methods.grpo import GRPO\n\nMINE = GRPO.but(name='mine')\n")
    steps = gruppo.steps("./mine.py:MINE", **{**SMALL, "steps": 2})
    next(steps)
    write("mine.py", "from gruppo.methods.grpo import GRPO\n\nMINE = GRPO.but(name='ours')\n")
    with pytest.raises(ValueError, match=r"mine.py was changed while a run of this session goes on \(.*runs.*\)"):
        gruppo.train("./mine.py:MINE", **SMALL)
    steps.close()  # type: ignore[attr-defined]
    assert gruppo.train("./mine.py:MINE", **SMALL).config.method.name == "ours"
