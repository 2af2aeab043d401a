"""Finds the answer in a text: in a box, after four hashes, in tags, or as the last number.

Light to import, because it runs in the scorer's worker.
"""

import re
from collections.abc import Callable
from fractions import Fraction

from gruppo.tasks.imports import nearest

_NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?[$€£]?"  # neither the 3 of x3 nor the minus of 5-3
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    r"(?:[eE][-+]?[0-9]{1,3})?(?:/[0-9]+)?(?![eE]?[-+]?[0-9])"
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_TAGS = re.compile(r"<answer>(.*?)</answer>", re.S)


def boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}` with balanced braces; None if there is none."""
    for start in reversed([m.end() for m in _BOX.finditer(text)]):
        depth = 1
        for at in range(start, len(text)):
            if text[at] in "{}" and text[at - 1] != "\\":
                depth += 1 if text[at] == "{" else -1
            if depth == 0:
                return text[start:at].strip()
    return None


def hashes(text: str) -> str | None:
    """The rest of the line after the last `####` (the format of GSM8K)."""
    _, found, rest = text.rpartition("####")
    return rest.strip().split("\n")[0].strip() if found else None


def tagged(text: str) -> str | None:
    """The content of the last `<answer>…</answer>`."""
    found = _TAGS.findall(text)
    return found[-1].strip() if found else None


def last_number(text: str) -> str | None:
    """The last number as it is written: 1,234.5, -3, 1/2, 1e3."""
    found = _NUMBER.findall(text)
    return found[-1] if found else None


def is_number(text: str) -> bool:
    """Whether the text is a number and nothing else."""
    return _NUMBER.fullmatch(text.strip().rstrip("%")) is not None


def whole(text: str) -> str:
    """The text without the reasoning before `</think>`."""
    return text.rpartition("</think>")[2].strip()


def auto(text: str) -> str:
    r"""The content of `<answer>` tags, else of `\boxed{}`, else the text after `####`, else the whole text."""
    said = whole(text)
    for look in (tagged, boxed, hashes):
        found = look(said)
        if found is not None:
            return found
    return said


def answer_of(text: str) -> str:
    r"""The answer in a text: in `<answer>` tags, in `\boxed{}` or after `####`, else its last line."""
    lines = [" ".join(line.split()) for line in auto(text).splitlines()]
    return next((line for line in reversed(lines) if line), "")


WAYS: dict[str, Callable[[str], str | None]] = {
    "auto": auto,
    "whole": whole,
    "tags": tagged,
    "boxed": boxed,
    "hashes": hashes,
}


def way(name: str) -> Callable[[str], str | None]:
    if name not in WAYS:
        raise ValueError(
            f"extract={name!r}: no such way to find an answer.{nearest(name, WAYS)} Use one of {', '.join(WAYS)}."
        )
    return WAYS[name]


def number(text: str) -> Fraction | None:
    """The last number of a text, exactly; thousands separators, currency and percent signs are ignored."""
    found = last_number(text)
    if found is None or len(found) > 1000:  # Python refuses to read very long numbers
        return None
    top, slash, bottom = re.sub("[,$€£]", "", found).replace("\u2212", "-").partition("/")
    below = Fraction(bottom) if slash else Fraction(1)
    return Fraction(top) / below if below else None
