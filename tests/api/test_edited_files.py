"""A session in which the user edits files between two runs: each run is of what stands there when it starts."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gruppo
from gruppo.envs.with_tools import toolbox
from gruppo.stages.record import to_table
from gruppo.tasks.imports import load_object
from gruppo.train.depends import user_files

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
    """Also a helper of what has changed: other files that import it would not know its classes."""
    write("beside.py", "class Thing:\n    pass\n")
    write("other.py", "from beside import Thing\n\n\ndef knows(x):\n    return isinstance(x, Thing)\n")
    write("mine.py", "from beside import Thing\n\nNAME = 'one'\n")
    thing, knows = load_object("./mine.py:Thing"), load_object("./other.py:knows")
    write("mine.py", "from beside import Thing\n\nNAME = 'two'\n")
    gruppo.configured()
    assert load_object("./mine.py:NAME") == "two"
    assert load_object("./mine.py:Thing") is thing and load_object("./other.py:knows") is knows and knows(thing())


def test_what_imports_a_changed_file_changes_with_it() -> None:
    write("low.py", "class Thing:\n    pass\n")
    write("middle.py", "from low import Thing\n")
    write("own.py", "class Own:\n    pass\n")
    for name in ("mine", "other"):
        write(f"{name}.py", "from middle import Thing\nfrom own import Own\n")
    before, own = load_object("./mine.py:Thing"), load_object("./mine.py:Own")
    assert load_object("./other.py:Thing") is before
    write("low.py", "class Thing:\n    new = True\n")
    gruppo.configured()
    after = load_object("./mine.py:Thing")
    assert after is not before and after.new and load_object("./other.py:Thing") is after
    assert load_object("./mine.py:Own") is own


def test_a_module_of_a_package() -> None:
    Path("pack").mkdir()
    write("pack/__init__.py", "class Whole:\n    pass\n")
    write("mine.py", "from pack import Whole, part\n")
    found = []
    for name in ("one", "two"):
        write("pack/part.py", f"NAME = '{name}'\n")
        gruppo.configured()
        found.append((load_object("./mine.py:part.NAME"), load_object("./mine.py:Whole")))
    (one, whole), (two, same) = found
    assert (one, two) == ("one", "two") and whole is same


def test_after_an_import_that_failed() -> None:
    """What was imported before the error stays in Python, and may change as well."""
    write("beside.py", "ONE = 1\n")
    write("mine.py", "from beside import TWO\n")
    with pytest.raises(ValueError, match="cannot import name 'TWO'"):
        load_object("./mine.py:TWO")
    write("beside.py", "TWO = 2\n")
    gruppo.configured()
    assert load_object("./mine.py:TWO") == 2


def test_the_script_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names itself; without `__main__`, multiprocessing could start no process."""
    method_named("one")
    write("beside.py", "NAME = ''\n")
    script, own = ModuleType("__main__"), ModuleType("mine")
    script.__file__ = own.__file__ = str(Path("mine.py").absolute())
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.setitem(sys.modules, "mine", own)  # imported by the user, who has objects of it
    gruppo.configured("./mine.py:MINE")
    method_named("two")
    assert gruppo.configured("./mine.py:MINE").method.name == "two"
    assert sys.modules["__main__"] is script and sys.modules["mine"] is own


def test_what_the_session_itself_imported_has_to_be_reloaded_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path.cwd())])
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    write("beside.py", "NAME = 'a_'\n")
    method_named("one")
    beside = importlib.import_module("beside")
    assert gruppo.configured("./mine.py:MINE").method.name == "a_one"
    write("beside.py", "NAME = 'b_'\n")
    with pytest.raises(ValueError, match=r"beside.py has changed since this session .* importlib.reload\(beside\)"):
        gruppo.configured("./mine.py:MINE")
    assert gruppo.configured("grpo").method.name == "grpo" and sys.modules["beside"] is beside
    importlib.reload(beside)
    assert gruppo.configured("./mine.py:MINE").method.name == "b_one"


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


SERVER = """
from pathlib import Path

from gruppo.tools import Limits, Tool
from gruppo.tools.mcp import RemoteTool, Server


class Remote(RemoteTool):
    def __init__(self, server):
        Tool.__init__(self, server.name, "Looks.", {{"type": "object", "properties": {{}}}}, Limits())
        self.server = server


class Mine(Server):
    def __init__(self, name):
        self.name = name

    async def tools(self):
        return [Remote(self)]

    async def close(self):
        with Path("closed").open("a") as file:
            file.write(f"{{self.name}} ")


SERVER = Mine("{}")
"""


def test_servers_of_a_changed_file_are_closed_and_other_tools_stay() -> None:
    write("tools.py", TOOL.format("one"))
    write("first.py", SERVER.format("first"))
    write("second.py", SERVER.format("second"))
    names = ("./tools.py:look,calculator", "./first.py:SERVER,./tools.py:look", "./second.py:SERVER", "calculator")
    before = [toolbox(name) for name in names]
    write("first.py", SERVER.format("newer"))
    gruppo.configured()
    after = [toolbox(name) for name in names]
    assert [a is b for a, b in zip(before, after, strict=True)] == [True, False, True, True]
    assert Path("closed").read_text() == "first " and [tool.name for tool in after[1]] == ["newer", "look"]


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
        ValueError,
        match=r"mine.py, or a file that it imports, has changed since Mine was .*Name what .*now: '/.*/mine.py:NAME'",
    ):
        gruppo.configured(before)


LOCAL = """
from dataclasses import dataclass
from gruppo.methods.grpo import GRPO
from gruppo.stages.credit import GroupNormalised


def made():
    @dataclass(frozen=True)
    class Mine(GroupNormalised):
        def hello(self):
            return {}

    return GRPO.but(name="mine", credit=Mine())


MINE = made()
"""


def test_a_class_that_a_function_has_made_is_written_down_until_its_file_changes() -> None:
    """No other process can import it either way, so its source is stored with the run."""
    write("mine.py", LOCAL.format(1))
    config = gruppo.configured("./mine.py:MINE")
    assert gruppo.configured(config).method.credit.hello() == 1
    write("mine.py", LOCAL.format(2))
    with pytest.raises(ValueError, match=r"mine.py, or a file that it imports, has changed since Mine was loaded"):
        gruppo.configured(config)
    assert gruppo.configured("./mine.py:MINE").method.credit.hello() == 2
    with pytest.raises(ValueError, match=r"mine.py, or a file that it imports, has changed since Mine was loaded"):
        gruppo.configured(config)


def test_a_class_of_a_file_that_it_imports() -> None:
    write("mine.py", "from beside import MINE\n")
    write("beside.py", OCCUPANT.format(1.0))
    before = gruppo.configured("./mine.py:MINE").method
    write("beside.py", OCCUPANT.format(2.0))
    with pytest.raises(ValueError, match=r"beside.py, or a file that it imports, has changed since Mine was loaded"):
        gruppo.configured(before)
    assert gruppo.configured("./mine.py:MINE").method.credit.extra == 2.0


def test_files_of_a_run_that_goes_on_are_refused_until_its_end() -> None:
    write("mine.py", "from beside import MINE\n")
    write("beside.py", OCCUPANT.format(1.0))
    write("other.py", "from beside import Mine\nfrom gruppo.methods.grpo import GRPO\n\nOTHER = GRPO\n")
    write("alone.py", "from gruppo.methods.grpo import GRPO\n\nALONE = GRPO.but(name='alone')\n")
    gruppo.configured("./alone.py:ALONE")
    steps = gruppo.steps("./mine.py:MINE", **{**SMALL, "steps": 2})
    next(steps)
    mine = sys.modules["beside"]
    write("beside.py", OCCUPANT.format(2.0))
    write("alone.py", "from gruppo.methods.grpo import GRPO\n\nALONE = GRPO.but(name='anew')\n")
    assert gruppo.configured("grpo").method.name == "grpo"
    assert gruppo.configured("./alone.py:ALONE").method.name == "anew"
    for name in ("./mine.py:MINE", "./other.py:OTHER"):
        with pytest.raises(ValueError, match=r"beside.py has changed, and a run .* goes on \(.*runs.*\)"):
            gruppo.train(name, **SMALL)
    with pytest.raises(ValueError, match=r"beside.py has changed, and a run of this session that uses it goes on"):
        gruppo.compare(["grpo", "./other.py:OTHER optim.lr=1e-3"], seeds=1, **SMALL)
    assert sys.modules["beside"] is mine
    steps.close()  # type: ignore[attr-defined]
    assert gruppo.train("./mine.py:MINE", **SMALL).config.method.credit.extra == 2.0


def test_the_files_of_a_run_are_those_of_its_method_and_of_its_task() -> None:
    """Also where the folder has a space, and what worlds in a file of levels import."""
    Path("a folder").mkdir()
    write("a folder/mine.py", OCCUPANT.format(1.0))
    write("world.py", "from helper import Seen\n" + WORLD.format(1.0))
    write("helper.py", "from gruppo.envs.base import Seen\n")
    write("tools.py", TOOL.format("one"))
    write("levels.jsonl", json.dumps({"env": "./world.py:World", "prompt": "say a", "seed": 1}) + "\n")
    config = gruppo.configured("./a folder/mine.py:MINE", task="./levels.jsonl", **{"task.tools": "./tools.py:look"})
    expected = {"a folder/mine.py", "world.py", "helper.py", "tools.py"}
    assert user_files(config) == {Path(name).resolve() for name in expected}
