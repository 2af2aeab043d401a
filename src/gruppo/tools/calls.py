"""Calls of tools in what a model wrote.

{"name": "calculator", "arguments": {"expression": "2 + 3"}}    JSON, as chat templates have it, once or more
calculator 2 + 3                                a text, or its last line, that begins with the name of a tool
population {"city": "Oslo", "year": 1990}       the same for a tool with several arguments
look                                            the name alone, if nothing must be given
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gruppo.tools.base import Tool
from gruppo.tools.toolbox import Toolbox

OPENED = "<tool_call>"  # of many templates: what follows was meant as a call
NO_JSON = 'the call is no JSON object such as {"name": "tool", "arguments": {"argument": "value"}}.'
TRIES = 100  # braces that are looked at
Call = tuple[str, Any]  # the name of a tool, and its arguments: an object, or a text of JSON


def calls_in(text: str, box: Toolbox) -> list[Call]:
    """The calls in a text, in their order; none: it is an answer."""
    found = [call for value in objects_in(text) if (call := called(value, box)) is not None]
    return found or _short(text.strip(), box) or _short(text.strip().rpartition("\n")[2].strip(), box)


def objects_in(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects of a text."""
    decoder, at = json.JSONDecoder(), 0
    for _ in range(TRIES):
        at = text.find("{", at)
        if at < 0:
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        yield value


def called(value: dict[str, Any], box: Toolbox) -> Call | None:
    """The call that an object is: it names a tool that exists, or has arguments for one that does not."""
    inner = value.get("function")
    value = inner if isinstance(inner, dict) else value
    name = value.get("name")
    given = value.get("arguments", value.get("parameters"))
    if not isinstance(name, str) or (given is None and name not in box):
        return None
    return name, {} if given is None else given


def _short(text: str, box: Toolbox) -> list[Call]:
    name, rest = [*text.split(maxsplit=1), "", ""][:2]
    if name not in box:
        return []
    if not rest:
        return [] if box[name].parameters.get("required") else [(name, {})]
    if rest.startswith("{"):
        return [(name, rest)]
    one = argument_of(box[name])
    return [(name, {one: rest} if one else rest)]  # what is no JSON is refused with what the tool takes


def argument_of(tool: Tool) -> str:
    """The argument that a bare text is: the one that must be given, else the only one. Empty: it can be none."""
    names = list(tool.parameters.get("required", ()) or tool.arguments)
    return names[0] if len(names) == 1 and "string" in _kinds(tool.arguments[names[0]]) else ""


def _kinds(schema: Mapping[str, Any]) -> list[Any]:
    """The types of a schema: of `str | None` there are two."""
    kind = schema.get("type", [])
    either = [one["type"] for one in schema.get("anyOf", ()) if isinstance(one, Mapping) and "type" in one]
    return [*(kind if isinstance(kind, list) else [kind]), *either]


def line_of(box: Toolbox, described: bool) -> str:
    """The tools in one line, each as it is called; `described`: with what they do, for models that read sentences."""
    said = [_form(one) + (f" ({one.description})" if described else "") for one in box]
    how = (
        "To use a tool, write its name and what it needs as your last line; you are then shown its result. "
        if described
        else ""
    )
    return f"{how}tools: {', '.join(said)}"


def _form(tool: Tool) -> str:
    one = argument_of(tool)
    if one:
        return f"{tool.name} {one.upper()}" if tool.parameters.get("required") else f"{tool.name} [{one.upper()}]"
    return f"{tool.name} {tool.form}" if tool.arguments else tool.name
