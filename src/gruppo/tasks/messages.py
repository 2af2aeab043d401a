"""The messages of a row: who said what, with texts in parts, tool calls and tool results."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Turn = dict[str, Any]  # {"role", "content"}, and of tools "tool_calls", "name" or "tool_call_id"

_ROLES = {"human": "user", "gpt": "assistant"}  # of ShareGPT
_OF_TOOLS = ("name", "tool_call_id")  # of a tool's result


@dataclass(frozen=True)
class Said:
    """The parts of a prompt: the last user turn, the turns before it, the system prompt, and an answer after it.

    `after` are the turns between the user's and the answer: calls of tools, and what the tools returned.
    """

    prompt: str = ""
    answer: str = ""
    system: str = ""
    before: tuple[Turn, ...] = ()
    after: tuple[Turn, ...] = ()

    @staticmethod
    def of(value: Any, field: str = "prompt") -> "Said":
        if isinstance(value, str):
            return Said(value)
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"its prompt is {type(value).__name__} and neither a text nor a list of messages")
        return Said._of_turns(_turns(value, field))

    @staticmethod
    def _of_turns(turns: list[Turn]) -> "Said":
        system = "\n\n".join(t["content"] for t in turns if t["role"] == "system")
        turns = [t for t in turns if t["role"] != "system"]
        if turns and turns[-1].get("tool_calls"):
            raise ValueError("its last message calls a tool, and an answer must be a text")
        answer = turns.pop()["content"] if turns and turns[-1]["role"] == "assistant" else ""
        last = max((i for i, t in enumerate(turns) if t["role"] == "user"), default=-1)
        after = tuple(turns[last + 1 :])
        if last < 0 or (after and after[-1]["role"] != "tool"):
            raise ValueError("its messages have no turn of the user to answer")
        return Said(turns[last]["content"], answer, system, tuple(turns[:last]), after)

    @staticmethod
    def answered(value: list[Any], field: str = "prompt") -> "Said":
        """A side of a preference: a conversation that ends with the answer, or only the turn of the answer."""
        turns = _turns(value, field)
        if not turns or turns[-1]["role"] != "assistant":
            raise ValueError("one of its two conversations does not end with a turn of the assistant")
        return Said(answer=turns[0]["content"]) if len(turns) == 1 else Said._of_turns(turns)

    @property
    def user_turns(self) -> tuple[str, ...]:
        return (*(t["content"] for t in self.before if t["role"] == "user"), self.prompt)

    @property
    def context(self) -> list[Any]:
        """What the prompt is said in, for hashes; without tools the turns before it."""
        return [list(self.before), list(self.after)] if self.after else list(self.before)


def _turns(value: Any, field: str) -> list[Turn]:
    return [turn_of(m, f"message {i} of the field {field!r}") for i, m in enumerate(value, 1)]


def turn_of(message: Any, where: str) -> Turn:
    if not isinstance(message, Mapping):
        raise ValueError(f"one of its messages is {type(message).__name__} and not {{role, content}}")
    role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
    role = _ROLES.get(str(role), role)
    given = message.get("tool_calls")
    if given is not None and not isinstance(given, Iterable):
        raise ValueError(f"{where} has tool_calls={given!r}, which is no list of calls")
    calls = [_call(c, where) for c in given or ()]
    if calls and role != "assistant":
        raise ValueError(f"{where} has tool_calls and the role {role!r}; only the assistant calls tools")
    content = "" if calls and content is None else _text_of(content, where)
    if role not in ("system", "user", "assistant", "tool") or not isinstance(content, str):
        raise ValueError(
            f"one of its messages has the role {role!r} and {type(content).__name__} as content; use texts of system, "
            "user, assistant and tool"
        )
    own = {k: message[k] for k in _OF_TOOLS if role == "tool" and message.get(k) is not None}
    return {"role": role, "content": content, **({"tool_calls": calls} if calls else {}), **own}


def _text_of(content: Any, where: str) -> Any:
    """The texts of a list of parts, joined; anything else unchanged."""
    if not isinstance(content, (list, tuple)):
        return content
    texts: list[str] = []
    for part in content:
        kind = "text" if isinstance(part, str) else part.get("type") if isinstance(part, Mapping) else None
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(text, str):
            raise ValueError(
                f"{where} has a part of type {kind!r}, and a policy reads texts only, no pictures or sound; use parts "
                'such as {"type": "text", "text": "…"}'
            )
        texts.append(text)
    return "".join(texts)


def _call(call: Any, where: str) -> dict[str, Any]:
    """A tool call in the form that chat templates take: its arguments are an object, not the text of one."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if isinstance(arguments, Mapping):
        # Tables give every call all arguments that occur in them, with null for those that a call does not have.
        arguments = {k: v for k, v in arguments.items() if v is not None}
    elif isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise ValueError(f"{where} calls {name!r} with arguments that are not JSON: {arguments[:60]!r}") from None
    if not isinstance(name, str) or not isinstance(arguments, Mapping | None):
        raise ValueError(f'{where} has a tool call that is not {{"function": {{"name": …, "arguments": {{…}}}}}}')
    own = {"id": call["id"]} if call.get("id") is not None else {}
    return {**own, "type": "function", "function": {"name": name, "arguments": dict(arguments or {})}}
