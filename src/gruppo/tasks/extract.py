"""Where in a text the answer stands: in a box, behind four hashes, between tags, or as the last number.

Light to import: the worker process of a scorer goes through here.
"""

import re
from collections.abc import Callable
from fractions import Fraction

from gruppo.tasks.imports import nearest

_NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?[$€£]?"  # not the 3 of x3, nor the minus of 5-3
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    r"(?:[eE][-+]?[0-9]{1,3})?(?:/[0-9]+)?(?![eE]?[-+]?[0-9])"
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_TAGS = re.compile(r"<answer>(.*?)</answer>", re.S)


def boxed(text: str) -> str | None:
    r"""What the last `\boxed{…}` holds, braces in it balanced; None without one that closes."""
    for start in reversed([m.end() for m in _BOX.finditer(text)]):
        depth = 1
        for at in range(start, len(text)):
            if text[at] in "{}" and text[at - 1] != "\\":
                depth += 1 if text[at] == "{" else -1
            if depth == 0:
                return text[start:at].strip()
    return None


def hashes(text: str) -> str | None:
    """What stands behind the last `####`, to the end of that line (the form of GSM8K)."""
    _, found, rest = text.rpartition("####")
    return rest.strip().split("\n")[0].strip() if found else None


def tagged(text: str) -> str | None:
    """What the last `<answer>…</answer>` holds."""
    found = _TAGS.findall(text)
    return found[-1].strip() if found else None


def last_number(text: str) -> str | None:
    """The last number as it is written: 1,234.5, -3, 1/2, 1e3."""
    found = _NUMBER.findall(text)
    return found[-1] if found else None


def is_number(text: str) -> bool:
    """Whether the text is one number and nothing else."""
    return _NUMBER.fullmatch(text.strip().rstrip("%")) is not None


def whole(text: str) -> str:
    """All of it, but for what is thought aloud before `</think>`."""
    return text.rpartition("</think>")[2].strip()


def auto(text: str) -> str:
    r"""`<answer>` tags if there are any, else `\boxed{}`, else `####`, else the whole text."""
    said = whole(text)
    for look in (tagged, boxed, hashes):
        found = look(said)
        if found is not None:
            return found
    return said


def answer_of(text: str) -> str:
    r"""What a text answers: what stands in `<answer>` tags, in `\boxed{}` or behind `####`, else its last line."""
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
            f"extract={name!r}: no such way to find the answer in a text, so nothing can be judged."
            f"{nearest(name, WAYS)} Use one of {', '.join(WAYS)}."
        )
    return WAYS[name]


def number(text: str) -> Fraction | None:
    """The last number of a text, exactly; commas between thousands, currency and percent signs do not matter."""
    found = last_number(text)
    if found is None or len(found) > 1000:  # nobody's answer, and Python refuses to read very long ones
        return None
    top, slash, bottom = re.sub("[,$€£]", "", found).replace("\u2212", "-").partition("/")
    below = Fraction(bottom) if slash else Fraction(1)
    return Fraction(top) / below if below else None
