"""Texts that end an answer."""

from collections.abc import Callable
from collections.abc import Sequence as Seq

from gruppo.engines.base import Ints

# Characters before a text that may look different when decoding begins in the middle: a letter of up to four bytes
# that was cut, or a space that is left out at the beginning.
CUT = 4


def ends_in(decode: Callable[[Seq[int]], str], ids: Ints, texts: tuple[str, ...]) -> bool:
    """Whether one of the texts is in the end of what these ids say.

    It is asked after every token, so a text that is there has just ended. Only as much is decoded as the longest text
    may need: an answer of n tokens would otherwise be decoded n times as a whole.
    """
    longest = max(map(len, texts))
    take = longest + CUT
    while True:
        tail = decode(ids[-take:].tolist())
        if len(tail) >= longest + CUT or take >= len(ids):
            return any(text in tail for text in texts)
        take *= 2  # special tokens and parts of letters say nothing
