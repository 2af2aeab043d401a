"""Gruppo: policy optimisation for language models and agents, one page per method.

    run = gruppo.train("grpo", task="addition", steps=20)
    run.summary, run.metrics(), run.curves()

Everything that can be done from Python: docs/python.md. Importing the package is cheap: torch is loaded only by the
modules that use it. The types of these names are in `__init__.pyi`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_WHERE = {
    "train": "",  # the package itself, which can be called
    "steps": "gruppo.api",
    "resume": "gruppo.api",
    "resume_steps": "gruppo.api",
    "load": "gruppo.api",
    "evaluate": "gruppo.api",
    "compare": "gruppo.api",
    "configured": "gruppo.api",
    "SavedRun": "gruppo.api.runs",
    "Callback": "gruppo.train.callbacks",
    "Step": "gruppo.train.callbacks",
    "Method": "gruppo.stages",
    "method": "gruppo.methods",
    "Task": "gruppo.tasks",
    "TaskSet": "gruppo.tasks",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'gruppo' has no attribute {name!r}. It has: {', '.join(sorted(_WHERE))}.")
    return getattr(import_module(_WHERE[name]), name) if _WHERE[name] else import_module(f"gruppo.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
