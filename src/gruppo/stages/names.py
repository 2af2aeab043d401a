"""The nearest name, for error messages."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """` (nearest: a, b)`, or nothing when no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=2, cutoff=0.5)
    return f" (nearest: {', '.join(close)})" if close else ""
