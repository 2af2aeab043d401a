"""The nearest name, for error messages."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """` (nearest: a, b)`, or "" if no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=4, cutoff=0.5)
    # Swapped letters are the most common typo, so names with the same letters come first.
    close = sorted(close, key=lambda other: sorted(other) != sorted(name))[:2]
    return f" (nearest: {', '.join(close)})" if close else ""
