"""Python objects as files. A run holds names only, so what a notebook passes is written down, and then named.

A reward, the occupants of a method, rows and task sets become files in `from_python`, in the folder of runs. So the
processes that judge can import a reward, the command line can resume the run, and the record tells the truth: the name
of a file has a hash of its content, so another function is another file. Nothing is pickled.
"""

import dataclasses
import inspect
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from gruppo.api.sources import nowhere, source_of
from gruppo.stages import Method
from gruppo.tasks import Scorer, TaskSet
from gruppo.tasks.imports import load_object
from gruppo.tasks.loaded import file_of
from gruppo.tasks.stored import json_line, written
from gruppo.train.manifest import write_text

FOLDER = "from_python"


def store(folder: Path, stem: str, text: str, ending: str) -> str:
    """Writes a text into `from_python` under a name that has its hash; the whole path, good in any folder."""
    digest = blake2b(text.encode(), digest_size=4).hexdigest()
    path = folder / FOLDER / f"{stem}_{digest}{ending}"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    return path.absolute().as_posix()


# rewards


def reward_path(reward: Any, folder: Path) -> tuple[str, dict[str, Any]]:
    """The import path of a function or class that scores, and the arguments of a `functools.partial`."""
    if isinstance(reward, partial):
        if reward.args:
            raise ValueError("reward is a partial with arguments that have no names. Name them: partial(f, scale=2).")
        path, args = reward_path(reward.func, folder)
        return path, {**args, **reward.keywords}
    if isinstance(reward, Scorer):
        return reward.path, dict(reward.args)
    if isinstance(reward, str):
        return reward, {}
    if not callable(reward) or not hasattr(reward, "__qualname__"):
        raise ValueError(
            f"reward={reward!r} is an object, and the processes that judge cannot have it: they make their own. Give "
            "the name of a scorer, a function (task, text), or a class, with task.args for its arguments."
        )
    if not nowhere(reward):
        return import_path(reward), {}
    return f"{store(folder, reward.__name__, source_of([reward]), '.py')}:{reward.__name__}", {}


def import_path(found: Any) -> str:
    """`module:name`; of a module that is a file of the user's own, the file: the command line has another path."""
    return f"{_own_file(found) or found.__module__}:{found.__qualname__}"


def _own_file(found: Any) -> str:
    """The file of a module that is neither installed nor in a package; "" for any other."""
    file = getattr(sys.modules[found.__module__], "__file__", None)
    if file is None or "." in found.__module__:
        return ""
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    installed = any(Path(file).resolve().is_relative_to(Path(p).resolve()) for p in places if p)
    return "" if installed else str(file)


# methods


def written_method(method: Method, folder: Path) -> Method:
    """The method, with classes of the user read from a file: one of their own, or one that is written here."""
    mine = list(dict.fromkeys(_classes(method)))
    strange = [cls for cls in mine if nowhere(cls)]
    if old := next((cls for cls in strange if file_of(cls.__module__) and _outlived(cls)), None):
        file = file_of(old.__module__)
        raise ValueError(
            f"{file}, or a file that it imports, has changed since {old.__name__} was loaded from it, so a run would "
            f"name other code than it has. Name what stands there now: '{file}:NAME'."
        )
    paths = {cls: import_path(cls) for cls in mine if cls not in strange}
    if strange:
        stem = "".join(c if c.isalnum() else "_" for c in method.name)
        file = store(folder, stem, source_of(strange), ".py")
        paths |= {cls: f"{file}:{cls.__name__}" for cls in strange}
    return _moved(method, {cls: load_object(path) for cls, path in paths.items()})


def _outlived(cls: type) -> bool:
    """Whether the module in which a class was made is no longer the one of that name."""
    now = sys.modules.get(cls.__module__)
    globals_of = [f.__globals__ for f in vars(cls).values() if inspect.isfunction(f)]
    return now is None or (bool(globals_of) and all(found is not vars(now) for found in globals_of))


def _classes(x: Any) -> Iterable[type]:
    """The classes of dataclasses in a tree that are neither of an installed package nor read from a file already."""
    if isinstance(x, Mapping):
        for v in x.values():
            yield from _classes(v)
    elif isinstance(x, tuple | list):
        for v in x:
            yield from _classes(v)
    elif dataclasses.is_dataclass(x) and not isinstance(x, type):
        if nowhere(type(x)) or (not type(x).__module__.startswith("gruppo") and _own_file(type(x))):
            yield type(x)
        for f in dataclasses.fields(x):
            yield from _classes(getattr(x, f.name))


def _moved(x: Any, known: Mapping[type, Any]) -> Any:
    """The tree with these classes in place of those; what holds none of them stays the same object."""
    if isinstance(x, Mapping):
        new = {k: _moved(v, known) for k, v in x.items()}
        return x if all(new[k] is v for k, v in x.items()) else new
    if isinstance(x, tuple | list):
        parts = [_moved(v, known) for v in x]
        return x if all(a is b for a, b in zip(parts, x, strict=True)) else type(x)(parts)
    if not dataclasses.is_dataclass(x) or isinstance(x, type):
        return x
    fields = {f.name: _moved(getattr(x, f.name), known) for f in dataclasses.fields(x) if f.init}
    if type(x) in known:
        return known[type(x)](**fields)
    same = all(v is getattr(x, k) for k, v in fields.items())
    return x if same else dataclasses.replace(x, **fields)


# tasks


def rows_file(rows: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """Rows as a JSONL file."""
    if not rows:
        raise ValueError("task is an empty list, so there are no tasks. Give rows such as {'prompt': …, 'answer': …}.")
    lines = [json_line(dict(row), f"row {i}") for i, row in enumerate(rows)]
    return store(folder, "rows", "".join(f"{line}\n" for line in lines), ".jsonl")


def tasks_path(tasks: TaskSet, folder: Path) -> str:
    """The import path of a function that makes the task set again, from a file of its tasks."""
    if callable(tasks.scorer):
        path, args = reward_path(tasks.scorer, folder)
        tasks = dataclasses.replace(tasks, scorer=Scorer(path, args))
    stem = "".join(c if c.isalnum() else "_" for c in tasks.name) or "tasks"
    data = Path(store(folder, stem, written(tasks), ".tasks.jsonl"))
    code = (
        f'"""The task set {tasks.name}, passed from Python: its tasks are in {data.name}."""\n\n'
        "from pathlib import Path\n\nfrom gruppo.tasks.stored import read\n\n\n"
        f'def make():\n    return read(Path(__file__).with_name("{data.name}"))\n'
    )
    return f"{store(folder, stem, code, '.py')}:make"
