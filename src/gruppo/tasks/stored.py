"""Task sets that were passed from Python: a file with a line about the set and a line for each task."""

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from gruppo.tasks.base import Scorer, Task, TaskSet


def written(tasks: TaskSet) -> str:
    """The text of the file. What would not come back as it is, is refused."""
    scorer = tasks.scorer if isinstance(tasks.scorer, Scorer) else Scorer(tasks.scorer)
    head = {"name": tasks.name, "scorer": scorer.path, "args": dict(scorer.args), "max_tokens": tasks.max_tokens}
    head |= {"levels": tasks.levels, "notes": tasks.notes, "digest": tasks.digest}
    head |= {"env": tasks.env} if tasks.env else {}
    head |= {"graded": True} if tasks.graded else {}
    return "".join(f"{line}\n" for line in (json_line(head, tasks.name), *_lines(tasks)))


def _lines(tasks: TaskSet) -> Iterator[str]:
    for split, held in (("train", tasks.train), ("held_out", tasks.held_out)):
        for i in range(len(held)):
            task = held[i]
            yield json_line({"split": split, **{f.name: getattr(task, f.name) for f in fields(Task)}}, task.uid)


def read(path: Path) -> TaskSet:
    """The task set of such a file."""
    head, *lines = (_back(json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n") if line)
    splits: dict[str, list[Task]] = {"train": [], "held_out": []}
    for line in lines:
        splits[line.pop("split")].append(Task(**line))
    scorer = Scorer(head["scorer"], head["args"]) if head["args"] else head["scorer"]
    facts = (head[name] for name in ("max_tokens", "levels", "notes", "digest"))
    more = {"env": head.get("env", ""), "graded": head.get("graded", False)}
    return TaskSet(head["name"], splits["train"], splits["held_out"], scorer, *facts, **more)


def json_line(value: dict[str, Any], what: str) -> str:
    """One line of JSON that is the value again when it is read."""
    try:
        line = json.dumps(_there(value), ensure_ascii=False, allow_nan=False)
        same = _back(json.loads(line)) == value
    except (TypeError, ValueError):
        same, line = False, ""
    if not same:
        bad = next((k for k, v in value.items() if not _holds(v)), "a field")
        raise ValueError(
            f"{what}: {bad} holds what a file cannot, so the run could not be repeated. Use texts, finite numbers, "
            "true, false, None, lists, and dicts with texts as keys."
        )
    return line


def _holds(value: Any) -> bool:
    try:
        return _back(json.loads(json.dumps(_there(value), allow_nan=False))) == value
    except (TypeError, ValueError):
        return False


def _there(value: Any) -> Any:
    """JSON has no tuples: they are marked."""
    if isinstance(value, dict):
        return {k: _there(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return {"$tuple": [_there(v) for v in value]}
    return [_there(v) for v in value] if isinstance(value, list) else value


def _back(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"$tuple"}:
            return tuple(_back(v) for v in value["$tuple"])
        return {k: _back(v) for k, v in value.items()}
    return [_back(v) for v in value] if isinstance(value, list) else value
