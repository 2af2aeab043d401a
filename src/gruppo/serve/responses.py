"""The Responses API, which newer agent libraries speak: a request is read as one for a chat completion.

Nothing is stored: a request brings its whole dialogue, so `previous_response_id` and `conversation` are refused.
"""

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from gruppo.serve.chat import Answer, Asked
from gruppo.serve.http import Refusal, Reply

ASSISTANT = {"role": "assistant"}
TEXTS = ("input_text", "output_text", "text")
# What would change the answer and cannot be done: {field: (what is harmless, the remedy)}.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "previous_response_id": ((None,), "Nothing is stored here: send the whole dialogue as input."),
    "conversation": ((None,), "Nothing is stored here: send the whole dialogue as input."),
    "background": ((None, False), "Wait for the answer."),
    "prompt": ((None,), "Nothing is stored here: send instructions and input."),
}


def asked_of(body: Mapping[str, Any]) -> Asked:
    """The request as one for a chat completion, checked as such."""
    for name, (harmless, remedy) in REFUSED.items():
        if (value := body.get(name)) not in harmless:
            raise Refusal(400, f"{name}={value!r} is not served here. {remedy}", "unsupported_value", name)
    chat = {n: body[n] for n in ("temperature", "top_p", "stream") if n in body}
    chat |= {"max_tokens": body.get("max_output_tokens"), "tools": _tools(body.get("tools"))}
    choice: Any = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    chat["tool_choice"] = choice
    form = body.get("text")
    chat["response_format"] = form.get("format") if isinstance(form, Mapping) else None
    return Asked.of({**chat, "messages": _messages(body.get("instructions"), body.get("input"))})


def _tools(value: Any) -> Any:
    """Functions as chat completions write them. Tools of another type are refused there."""
    if not isinstance(value, list):
        return value
    keys = ("name", "description", "parameters")
    own = [isinstance(t, Mapping) and t.get("type") == "function" and "function" not in t for t in value]
    return [
        {"type": "function", "function": {k: t[k] for k in keys if t.get(k) is not None}} if mine else t
        for t, mine in zip(value, own, strict=True)
    ]


def _messages(instructions: Any, given: Any) -> list[dict[str, Any]]:
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not items:
        said = "input is missing or empty, so there is nothing to answer."
        raise Refusal(400, f"{said} Send a text, or a list of messages and results of tools.", param="input")
    out = [{"role": "system", "content": instructions}] if instructions else []
    for i, item in enumerate(items):
        message = _message(item, f"input[{i}]")
        # What the assistant said and called in one turn comes as several items.
        if message and out and message["role"] == out[-1]["role"] == "assistant":
            both = {k: [*(out[-1].get(k) or ()), *(message.get(k) or ())] for k in ("content", "tool_calls")}
            out[-1] = {**ASSISTANT, **both}
        elif message:
            out.append(message)
    return out


def _message(item: Any, where: str) -> dict[str, Any] | None:
    """An item of the input as a message; None for one that a policy does not read (its own reasoning)."""
    kind = item.get("type", "message") if isinstance(item, Mapping) else type(item).__name__
    if kind == "message":
        return {"role": item.get("role"), "content": _parts(item.get("content"))}
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        return {**ASSISTANT, "content": [], "tool_calls": [{"id": item.get("call_id"), "function": function}]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": _parts(item.get("output"))}
    if kind == "reasoning":
        return None
    known = "message, function_call, function_call_output"
    raise Refusal(400, f"{where} is of type {kind!r}, which is not served here. Use {known}.", param="input")


def _parts(content: Any) -> Any:
    """The parts of a content as those of chat completions; a text is one part."""
    if not isinstance(content, list):
        return content if content is None else [content]
    texts = [isinstance(p, Mapping) and p.get("type") in TEXTS for p in content]
    return [{**p, "type": "text"} if text else p for p, text in zip(content, texts, strict=True)]


def reply_of(answer: Answer, model: str, asked: Asked) -> Reply:
    head = {"id": f"resp_{secrets.token_hex(12)}", "object": "response", "created_at": int(time.time()), "model": model}
    head |= {"error": None, "incomplete_details": None, "instructions": None, "metadata": {}, "tools": []}
    head |= {"temperature": asked.temperature, "top_p": asked.top_p, "parallel_tool_calls": True, "tool_choice": "auto"}
    used = {"input_tokens": answer.prompt_tokens, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0}}
    used |= {"output_tokens": answer.tokens, "output_tokens_details": {"reasoning_tokens": 0}}
    used |= {"total_tokens": answer.prompt_tokens + answer.tokens}
    cut = answer.reason == "length"
    items = _items(answer)
    whole = {**head, "status": "incomplete" if cut else "completed", "output": items, "usage": used}
    whole |= {"incomplete_details": {"reason": "max_output_tokens"}} if cut else {}
    if not asked.stream:
        return Reply(whole)
    begun = {"response": {**head, "status": "in_progress", "output": [], "usage": None}}
    events = [{"type": "response.created", **begun}, {"type": "response.in_progress", **begun}]
    events += [e for i, item in enumerate(items) for e in _events(item, i)]
    events.append({"type": f"response.{whole['status']}", "response": whole})
    return Reply(events=tuple({**e, "sequence_number": i} for i, e in enumerate(events)))


def _items(answer: Answer) -> list[dict[str, Any]]:
    out = list[dict[str, Any]]()
    if answer.text or not answer.calls:
        part = {"type": "output_text", "text": answer.text, "annotations": []}
        said = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant", "content": [part]}
        out.append({**said, "status": "incomplete" if answer.reason == "length" else "completed"})
    for call in answer.calls:
        made = {"id": f"fc_{secrets.token_hex(12)}", "type": "function_call", "call_id": call["id"]}
        out.append({**made, **call["function"], "status": "completed"})
    return out


def _events(item: Mapping[str, Any], index: int) -> Iterator[dict[str, Any]]:
    """Of one item: it begins, one piece that is all of it, it ends."""
    at = {"output_index": index, "item_id": item["id"]}
    call = item["type"] == "function_call"
    empty = {"arguments": ""} if call else {"content": []}
    added = {**item, **empty, "status": "in_progress"}
    yield {"type": "response.output_item.added", "output_index": index, "item": added}
    if call:
        yield {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]}
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.function_call_arguments.done", **at, **done}
    else:
        [part], inside = item["content"], {**at, "content_index": 0}
        yield {"type": "response.content_part.added", **inside, "part": {**part, "text": ""}}
        yield {"type": "response.output_text.delta", **inside, "delta": part["text"], "logprobs": []}
        yield {"type": "response.output_text.done", **inside, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **inside, "part": part}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}
