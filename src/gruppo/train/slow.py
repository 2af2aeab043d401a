"""What a run is doing, said only where it takes long: a run of seconds has no more lines than it needs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 3.0  # seconds


@contextmanager
def told_if_slow(say: Callable[[str], None], words: str) -> Iterator[None]:
    """Says these words once the work inside has taken `PATIENCE` seconds."""
    timer = threading.Timer(PATIENCE, say, [words])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
