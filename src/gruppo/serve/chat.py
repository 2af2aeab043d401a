"""Chat completions: what a request asks for, as it is checked, and how an answer is written."""

import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gruppo.serve.http import Refusal, Reply
from gruppo.tasks.messages import turn_of

CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)  # of Hermes, Qwen and others
OPEN = "<tool_call>\n"
# What would change the answer and cannot be done: {field: (what is harmless, the remedy)}.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((None, 1), "Ask several times: each answer is a sequence of its own."),
    "logprobs": ((None, False), "Leave it out."),
    "logit_bias": ((None, {}), "Leave it out."),
    "presence_penalty": ((None, 0), "Leave it out."),
    "frequency_penalty": ((None, 0), "Leave it out."),
    "response_format": ((None, {"type": "text"}), "Ask for the format in a message, and read the text."),
    "functions": ((None, []), "Use tools."),
}


@dataclass(frozen=True)
class Asked:
    """A request for a completion, checked."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    max_tokens: int = 0  # 0: not said
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    stream: bool = False
    usage: bool = False  # of a stream
    opening: str = ""  # how the answer begins, where a call of a tool is required

    @staticmethod
    def of(body: Mapping[str, Any]) -> "Asked":
        for name, (harmless, remedy) in REFUSED.items():
            if (value := body.get(name)) not in harmless:
                raise Refusal(400, f"{name}={value!r} is not served here. {remedy}", "unsupported_value", name)
        most = [n for n in ("max_completion_tokens", "max_tokens") if body.get(n) is not None]
        options = body.get("stream_options")
        tools = _tools(body.get("tools")) if body.get("tool_choice") != "none" else ()
        return Asked(
            messages_of(body.get("messages")),
            tools,
            _number(body, most[0], 1, 1 << 31, whole=True) if most else 0,
            _number(body, "temperature", 0, 100),
            _number(body, "top_p", 1e-9, 1),
            _stops(body.get("stop")),
            _number(body, "seed", -(1 << 63), 1 << 63, whole=True),
            bool(body.get("stream")),
            isinstance(options, Mapping) and bool(options.get("include_usage")),
            _opening(body.get("tool_choice"), tools),
        )


def messages_of(given: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(given, list) or not given:
        said = "messages is missing or empty, so there is nothing to answer."
        raise Refusal(400, f'{said} Send messages=[{{"role": "user", "content": "…"}}].', param="messages")
    out = list[dict[str, Any]]()
    for i, m in enumerate(given):
        if isinstance(m, Mapping):
            role = "system" if m.get("role") == "developer" else m.get("role")
            empty = m.get("content") is None and role == "assistant"
            m = {**m, "role": role, **({"content": ""} if empty else {})}
        try:
            out.append(turn_of(m, f"messages[{i}]"))
        except ValueError as error:
            raise Refusal(400, f"messages[{i}] cannot be read: {error}.", param=f"messages[{i}]") from None
    return tuple(out)


def _number(body: Mapping[str, Any], name: str, low: float, high: float, whole: bool = False) -> Any:
    value = body.get(name)
    if value is None:
        return None
    right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not right or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise Refusal(400, f"{name}={value!r} is not {kind} from {low:g} to {high:g}. Use one, or leave it out.")
    return value


def _stops(value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value or []
    if not isinstance(texts, list) or not all(isinstance(t, str) and t for t in texts):
        raise Refusal(400, f"stop={value!r} is neither a text nor a list of texts. Use such.", param="stop")
    return tuple(texts)


def _opening(choice: Any, tools: tuple[dict[str, Any], ...]) -> str:
    """The words that an answer begins with, so that it calls a tool; the policy only writes the rest."""
    if choice in (None, "auto", "none"):
        return ""
    names = [t["function"]["name"] for t in tools]
    if choice == "required" and names:
        return OPEN
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if name not in names:
        served = f'"auto", "none", "required" or one of tools ({", ".join(names) or "there are none"})'
        raise Refusal(
            400, f"tool_choice={choice!r} is not served here. Use {served}.", "unsupported_value", "tool_choice"
        )
    return f'{OPEN}{{"name": {json.dumps(name)}, "arguments": '


def _tools(value: Any) -> tuple[dict[str, Any], ...]:
    if value and not isinstance(value, list):
        raise Refusal(400, f"tools is no list, but {value!r}. Use a list of functions.", param="tools")
    for tool in value or ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            form = '{"type": "function", "function": {"name": …, "parameters": {…}}}'
            raise Refusal(400, f"tools has {tool!r}, which is no function. Use {form}.", param="tools")
    return tuple(value or ())


@dataclass(frozen=True)
class Answer:
    """What the policy said, as the program sees it."""

    text: str
    reason: str  # stop, length, tool_calls
    calls: tuple[dict[str, Any], ...] = ()
    prompt_tokens: int = 0
    tokens: int = 0

    @staticmethod
    def of(full: str, cut: bool, asked: Asked, prompt_tokens: int, tokens: int) -> "Answer":
        """Of the whole text. It ends before a text of `stop`; calls of tools are read if there are tools."""
        ends = [at for s in asked.stop if (at := full.find(s)) >= 0]
        text, calls = full[: min(ends)] if ends else full, list[dict[str, Any]]()
        for found in CALL.finditer(text) if asked.tools else ():
            if call := _call(found[1]):
                calls.append(call)
                text = text.replace(found[0], "", 1)
        text = text.strip() if calls else text
        reason = "tool_calls" if calls else "length" if cut else "stop"
        return Answer(text, reason, tuple(calls), prompt_tokens, tokens)

    @property
    def message(self) -> dict[str, Any]:
        """In the format of OpenAI."""
        if not self.calls:
            return {"role": "assistant", "content": self.text}
        return {"role": "assistant", "content": self.text or None, "tool_calls": list(self.calls)}

    def reply(self, model: str, asked: Asked) -> Reply:
        used = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.tokens}
        used["total_tokens"] = sum(used.values())
        head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}
        if not asked.stream:
            choice = {"index": 0, "message": self.message, "finish_reason": self.reason, "logprobs": None}
            return Reply({**head, "object": "chat.completion", "choices": [choice], "usage": used})
        calls = [{"index": i, **c} for i, c in enumerate(self.calls)]
        said = {**self.message, **({"tool_calls": calls} if calls else {})}
        head["object"] = "chat.completion.chunk"
        deltas = ((said, None), ({}, self.reason))
        events = [{**head, "choices": [{"index": 0, "delta": d, "finish_reason": r}]} for d, r in deltas]
        return Reply(events=(*events, *([{**head, "choices": [], "usage": used}] if asked.usage else [])))


def _call(text: str) -> dict[str, Any] | None:
    """A call as OpenAI writes it: the arguments are a text. None if it is none."""
    try:
        found = json.loads(text)
        name, arguments = found["name"], found.get("arguments", {})
    except (ValueError, KeyError, RecursionError):
        return None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{secrets.token_hex(8)}", "type": "function", "function": function}
