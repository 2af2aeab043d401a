"""How a turn is read: what the agent thought, the kind of thought, and its action.

    line    the action is the last line; what stands before it is thought; `line:explore` gives every turn this tag
    tags    <think>…</think><action>…</action>, with names of your own, such as those of rlvmr
    json    the last JSON object that names an action: {"action": "go hall"}, or a call of a tool
    words   as line, if the line has one of the words that every action has: words:answer,+,-,*

Nothing here raises for a text. A turn without any action is `void`; one whose action cannot be taken as it stands
(a tag left open, two actions, broken JSON) is `invalid`, and its action is empty.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gruppo.tasks.imports import nearest

RLVMR = ("planning", "explore", "reflection", "monitor")  # the kinds of thought of rlvmr, in the order that it asks for
LONGEST = 100_000  # characters that are read


@dataclass(frozen=True, slots=True)
class Said:
    """A turn as it was read."""

    action: str = ""
    thought: str = ""
    tag: str = ""  # the kind of thought; empty: none was named
    void: bool = False  # there is no action
    invalid: bool = False  # there is one, but it cannot be taken as it stands

    @property
    def flags(self) -> frozenset[str]:
        """For `Turn.flags`."""
        return frozenset(name for name in ("void", "invalid") if getattr(self, name))


Format = Callable[[str], Said]


@dataclass(frozen=True)
class Line:
    """The last line that is not empty. Every turn has the same `tag`, for a policy that names no kinds of thought."""

    tag: str = ""

    expects = "a line of text"

    def __call__(self, text: str) -> Said:
        lines = [line.strip() for line in _text(text).splitlines() if line.strip()]
        return Said(lines[-1], "\n".join(lines[:-1]), self.tag) if lines else Said(tag=self.tag, void=True)


@dataclass(frozen=True)
class Words:
    """The last line that is not empty, if one of these words is in it; a line without any of them is no action."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.words or any(len(word.split()) != 1 for word in self.words):
            raise ValueError(f"words {', '.join(self.words)!r}: no line could have them. Use one word or more.")

    def __call__(self, text: str) -> Said:
        said = Line()(text)
        return said if set(said.action.split()) & set(self.words) else Said(thought=_text(text).strip(), void=True)


@dataclass(frozen=True)
class Tags:
    """Thoughts and an action in tags. The first kind of `thoughts` that is found, in their order, is the tag."""

    thoughts: tuple[str, ...] = ("think",)
    action: str = "action"

    def __post_init__(self) -> None:
        for name in (*self.thoughts, self.action):
            if not re.fullmatch(r"\w+", name):
                raise ValueError(f"tag {name!r}: <{name}> could not be told from text. Use letters, digits and _.")
        if self.action in self.thoughts:
            raise ValueError(f"tag {self.action!r} is thought and action at once. Use two names.")

    @property
    def expects(self) -> str:
        return f"<{self.action}>…</{self.action}>"

    def __call__(self, text: str) -> Said:
        text = _text(text)
        found = {name: _between(text, name) for name in (*self.thoughts, self.action)}
        tag = next((name for name in self.thoughts if found[name]), "")
        thought = "\n".join(part for name in self.thoughts for part in found[name])
        actions = found[self.action]
        if len(actions) == 1 and actions[0]:
            return Said(actions[0], thought, tag)
        tried = bool(actions) or f"<{self.action}>" in text
        return Said("", thought, tag, void=not tried, invalid=tried)


@dataclass(frozen=True)
class Call:
    """A tool call in JSON: the name of the tool and its arguments, or an object with an `action`.

    The action of a call is the name and the values of its arguments, as in `go hall`.
    """

    expects = 'a JSON object with an action, such as {"action": "look"}'

    def __call__(self, text: str) -> Said:
        text = _text(text)
        found, broken = _objects(text)
        calls = [(at, action) for at, value in found if (action := _action(value)) is not None]
        if len(calls) == 1 and calls[0][1]:
            return Said(calls[0][1], text[: calls[0][0]].strip())
        tried = bool(calls) or broken
        return Said("", "" if calls else text.strip(), void=not tried, invalid=tried)


FORMATS: dict[str, Format] = {"line": Line(), "tags": Tags(), "rlvmr": Tags(RLVMR), "json": Call()}


def format_of(name: str) -> Format:
    """A format by name; `tags:plan,explore:act` names the tags of the thoughts and of the action, `line:explore` the
    tag of every turn, `words:go,put` words."""
    kind, _, rest = name.partition(":")
    if kind == "line" and rest.isidentifier():
        return Line(rest)
    if kind == "words":
        return Words(tuple(rest.split(",")) if rest else ())
    if kind == "tags" and rest:
        thoughts, _, action = rest.partition(":")
        return Tags(tuple(t for t in thoughts.split(",") if t), action or "action")
    if name not in FORMATS:
        raise ValueError(
            f"format={name!r}: no such format.{nearest(name, FORMATS)} Formats: {', '.join(FORMATS)}, "
            "line:TAG, tags:THOUGHT,THOUGHT:ACTION with names of your own, or words:WORD,WORD."
        )
    return FORMATS[name]


def _text(text: Any) -> str:
    return text[-LONGEST:] if isinstance(text, str) else ""


def _between(text: str, name: str) -> list[str]:
    """What stands in the tags of this name, one after the other."""
    out: list[str] = []
    at = 0
    while (start := text.find(f"<{name}>", at)) >= 0:
        start += len(name) + 2
        stop = text.find(f"</{name}>", start)
        if stop < 0:
            break
        out.append(text[start:stop].strip())
        at = stop
    return out


def _objects(text: str) -> tuple[list[tuple[int, Any]], bool]:
    """The JSON objects of a text with their positions, and whether something began like one and is none."""
    decoder, found, at, broken = json.JSONDecoder(), list[tuple[int, Any]](), 0, False
    tries = 0
    while (at := text.find("{", at)) >= 0 and tries < 100:
        tries += 1
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            broken, at = True, at + 1
            continue
        found.append((at, value))
        at = end
    return found, broken


def _action(value: Any) -> str | None:
    """The action of a JSON object; None if it names none, empty if it cannot be one."""
    if not isinstance(value, dict):
        return None
    if "action" in value:
        return value["action"].strip() if isinstance(value["action"], str) else ""
    value = value.get("function", value) if isinstance(value.get("function", value), dict) else value
    if "name" not in value:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return ""
    if not isinstance(value["name"], str) or not isinstance(arguments, dict):
        return ""
    plain = all(isinstance(v, str | int | float) for v in arguments.values())
    return " ".join([value["name"], *map(str, arguments.values())]) if plain else ""
