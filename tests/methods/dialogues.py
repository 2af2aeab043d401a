"""Episodes of several turns, written by hand with `Growing`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gruppo.data import Episode, Growing, Status


def dialogue(
    uid: int,
    turns: Sequence[int | Mapping[str, Any]],
    reward: float | None,
    group: str = "g",
    *,
    seen: int = 2,
    status: Status = Status.OK,
    fresh: bool = False,
    **fields: Any,
) -> Episode:
    """An episode whose turns have so many tokens, or these fields of `Turn` with `tokens` (1 if not told).

    seen   tokens that the environment says before each turn but the first
    fresh  every turn has a context of its own
    """
    grown = Growing(uid, f"task of {group}", group, **fields)
    for i, one in enumerate(turns):
        told = {"tokens": one} if isinstance(one, int) else dict(one)
        n = told.pop("tokens", 1)
        if i == 0 or fresh:
            grown.begin(np.array([1, 2]))
        else:
            grown.observe(np.full(seen, 3))
        grown.act(np.full(n, 5), np.full(n, -1.0, np.float32), 0, **told)
    return grown.finish(status, reward={} if reward is None else {"task": reward})


def calls(n: int) -> dict[str, Any]:
    """A turn with so many calls of a tool."""
    from gruppo.data import ToolCall

    return {"tools": tuple(ToolCall("search", str(i), 0.1) for i in range(n))}
