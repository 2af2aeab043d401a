"""A sign of life while a run samples and has nothing else to say: with a large model that takes minutes."""

import threading
import time
from collections.abc import Callable
from typing import Any

from gruppo.stages.under_way import counted

SILENCE = 10.0  # seconds without a word, after which there is a sign
RARELY = 60.0  # seconds between two signs, once there have been some
TICK = 1.0  # seconds


def decoded(run: Any) -> int:
    """Tokens that the engines of a run have sampled, also of answers that are still being written."""
    return sum(getattr(engine, "decoded", 0) for engine in {id(e): e for e in (run.engine, run.plain)}.values())


class Heartbeat:
    """Within it, a thread looks every second. It reads counters and changes nothing.

    say     prints a sentence
    spoken  when anything was said last, by time.monotonic()
    tokens  how many were sampled so far; they come while the first answer is still being written
    """

    def __init__(
        self,
        say: Callable[[str], None],
        spoken: Callable[[], float] = lambda: 0.0,
        tokens: Callable[[], int] = lambda: 0,
        what: str = "answers",
    ) -> None:
        self.say, self.spoken, self.tokens, self.what = say, spoken, tokens, what
        self.wait = SILENCE
        self.since = self.last = 0.0
        self.wanted = self.before = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="heartbeat")

    def look(self, now: float) -> None:
        """Says how far sampling is, if it has been silent for long enough."""
        done, wanted = counted()
        if wanted != self.wanted:  # another wave
            self.wanted, self.since, self.before = wanted, now, self.tokens()
        if done == wanted or now - max(self.since, self.spoken()) < SILENCE or now - self.last < self.wait:
            return
        more = self.tokens() - self.before
        self.say(
            f"sampling: {done} of {wanted} {self.what}{f', {more:,} tokens' if more else ''} after "
            f"{now - self.since:.0f} s"
        )
        self.last, self.wait = now, min(2 * self.wait, RARELY)

    def _watch(self) -> None:
        while not self._ended.wait(TICK):
            self.look(time.monotonic())

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        self._thread.join()
