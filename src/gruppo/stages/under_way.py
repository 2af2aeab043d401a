"""How many answers this process is sampling, and how many it has, for the sign of life of a slow run.

To count changes nothing: it reads the table of answers that is filled anyway.
"""

from collections.abc import Generator, Sized
from contextlib import contextmanager

_UNDER_WAY: dict[int, tuple[Sized, int]] = {}


@contextmanager
def under_way(found: Sized, wanted: int) -> Generator[None, None, None]:
    """While `found` is filled, up to so many."""
    _UNDER_WAY[id(found)] = found, wanted
    try:
        yield
    finally:
        del _UNDER_WAY[id(found)]


def counted() -> tuple[int, int]:
    """(answers that are there, answers that are wanted), of all that is being sampled now."""
    known = list(_UNDER_WAY.values())
    return sum(len(found) for found, _ in known), sum(wanted for _, wanted in known)
