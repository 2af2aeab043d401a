"""A Java server that plays one game at a time, for environments of one process that share it."""

from collections.abc import Callable, Sequence
from typing import Any


class OneGame:
    """The server, and whose game is on it."""

    def __init__(self, java: Any) -> None:
        self.java = java
        self.owner: Any = None

    def regained(self, by: Any, begin: Callable[[], Any], said: Sequence[str]) -> None:
        """If another one's game is on it: the own game begins anew, and its actions are played again."""
        if self.owner is by:
            return
        self.owner = by
        begin()
        for action in said:
            self.java.step(action)


def next_of(gold: Sequence[str], said: Sequence[str]) -> str:
    """The next action of a path; empty for who has left it."""
    so_far = len(said)
    return gold[so_far] if list(gold[:so_far]) == list(said) and so_far < len(gold) else ""
