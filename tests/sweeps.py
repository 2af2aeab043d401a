"""Sweeps over all methods: a part of them in `make test`, all of them in `make test-all`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def fourth(names: Iterable[str], first: int = 0, always: Collection[str] = ()) -> list[Any]:
    """Every fourth name, and those that are unlike all others; the rest is for the slow tests.

    For what the laws, the terms and the resume of every method (tests/methods) show in other ways. Sweeps begin at
    different names, so that together they have most of the methods.
    """
    return [
        name if i % 4 == first or name in always else pytest.param(name, marks=pytest.mark.slow)
        for i, name in enumerate(names)
    ]
