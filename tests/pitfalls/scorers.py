"""Reward functions for the pitfall tests. The judge loads this file in a process of its own, so it imports little."""

import time
import zlib
from typing import Any


def _hash(task: Any, text: str) -> int:
    return zlib.crc32(f"{task.uid} {text}".encode())


def luck(task: Any, text: str) -> float:
    """Right or wrong, by a hash of the answer."""
    return float(_hash(task, text) % 2)


def thirds(task: Any, text: str) -> float:
    """0, a half or 1, by a hash of the answer."""
    return _hash(task, text) % 3 / 2


def always(task: Any, text: str) -> float:
    return 1.0


def flaky(task: Any, text: str) -> float:
    """Every fourth answer meets a broken sandbox; the others are right or wrong."""
    if _hash(task, text) % 4 == 0:
        raise ConnectionError("no route to sandbox")
    return luck(task, text)


def broken(task: Any, text: str) -> float:
    raise ConnectionError("no route to sandbox")


def told(task: Any, text: str) -> Any:
    """What the text says is what happens."""
    if text == "raise":
        raise RuntimeError("no such unit")
    if text == "sleep":
        time.sleep(600)
    if text == "spin":
        while True:
            pass
    if text.startswith("="):
        return eval(text[1:], {"nan": float("nan"), "inf": float("inf")})
    return float(text == "right")


def parts(task: Any, text: str) -> dict[str, float]:
    """Two components of different scale."""
    return {"task": luck(task, text), "form": 10.0 * (len(text) % 3)}


def named(task: Any, text: str) -> dict[str, float]:
    """Two components, and none of them is called `task`."""
    return {"answer": luck(task, text), "form": float(len(text) % 2)}
