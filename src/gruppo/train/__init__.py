"""The loop, the learner, the cast, checkpoints: what runs a method.

`gruppo.train("grpo", task="addition", steps=20)` is `gruppo.api.train`: the package can be called, because a function
of that name and this package would take each other's place.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return import_module("gruppo.api").train(*arguments, **settings)


sys.modules[__name__].__class__ = _Callable
