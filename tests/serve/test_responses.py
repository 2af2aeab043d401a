"""The Responses API: what it asks for is what a chat completion asks for, and its answers are read by the library."""

import json
from typing import Any

import pytest
from served import Puppet, context
from test_session import CHATML, TOOLS, Talk, hf, user

from gruppo.data import Growing, Source
from gruppo.serve.chat import Asked
from gruppo.serve.http import Refusal
from gruppo.serve.responses import asked_of, reply_of
from gruppo.serve.session import Session

FLAT = [{"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}]
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'


def test_both_apis_ask_for_the_same() -> None:
    """A dialogue with a call, its result and a thought, in the words of each."""
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    chat = [
        {"role": "system", "content": "be kind"},
        user("a"),
        {"role": "assistant", "content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "a cup"},
        user("b"),
    ]
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hm", "annotations": []}]},
        {"type": "function_call", "id": "fc", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "a cup"},
        user("b"),
    ]
    how = {"temperature": 0.5, "top_p": 0.9, "stream": True}
    named = {"type": "function", "function": {"name": "look"}}, {"type": "function", "name": "look"}
    for ours, theirs in (("auto", "auto"), named):
        plain = Asked.of({"messages": chat, "tools": TOOLS, "max_tokens": 7, "tool_choice": ours, **how})
        body = {"instructions": "be kind", "input": items, "tools": FLAT, "max_output_tokens": 7, "tool_choice": theirs}
        assert asked_of({**body, **how, "store": False, "include": ["reasoning"]}) == plain
    assert asked_of({"input": "a"}) == Asked.of({"messages": [user("a")]})


def test_its_answer_goes_on_in_the_same_sequence() -> None:
    """What the library sends back is the items that it was given."""
    tokenizer = hf(CHATML)
    talk = Talk([f"hm {CALL}", "done"], tokenizer)

    def ask(items: list[Any]) -> Any:
        asked = asked_of({"input": items, "tools": FLAT})
        return reply_of(talk.run(asked), "m", asked).table

    said = ask([user("a")])
    text, call = said["output"]
    assert (text["content"][0]["text"], call["name"], json.loads(call["arguments"])) == ("hm", "look", {"at": 1})
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "a cup"}
    last = ask([user("a"), *said["output"], result])
    [s] = talk.episode.sequences
    assert last["output"][0]["content"][0]["text"] == "done" and last["status"] == "completed" and not talk.told
    used = last["usage"]
    assert used["input_tokens"] + used["output_tokens"] == used["total_tokens"] == len(s.ids)


@pytest.mark.parametrize("said", ["hm", f"hm {CALL}", f"{CALL}{CALL}", "cut…"])
def test_a_stream_says_what_the_whole_answer_says(said: str) -> None:
    """Read by the library of OpenAI: every event is one that it knows, and the pieces are the whole."""
    openai = pytest.importorskip("openai.types.responses")
    pydantic = pytest.importorskip("pydantic")
    tokenizer = hf(CHATML)
    asked = asked_of({"input": "a", "tools": FLAT, "stream": True})
    answer = Talk([said], tokenizer).run(asked)
    events = reply_of(answer, "m", asked).events
    known = pydantic.TypeAdapter(openai.ResponseStreamEvent)
    for number, event in enumerate(events):
        read = known.validate_python(event)
        assert read.type == event["type"] and event["sequence_number"] == number
    whole = openai.Response.model_validate(events[-1]["response"])
    texts = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    calls = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert whole.output_text == texts == answer.text
    assert calls == [c["function"]["arguments"] for c in answer.calls]
    assert whole.status == ("incomplete" if "…" in said else "completed") and events[-1]["type"].endswith(whole.status)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"input": []}, "input is missing or empty"),
        ({"input": None}, "input is missing or empty"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, r"input\[0\] is of type 'item_reference'"),
        ({"input": [3]}, r"input\[0\] is of type 'int'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "no pictures"),
        ({"input": [{"role": "user", "content": None}]}, r"messages\[0\] cannot be read"),
        ({"input": [{"role": "assistant", "content": c} for c in (None, 3)]}, r"messages\[0\] cannot be read"),
        ({"previous_response_id": "r"}, "send the whole dialogue"),
        ({"conversation": "c"}, "send the whole dialogue"),
        ({"background": True}, "Wait for the answer"),
        ({"tools": [{"type": "web_search"}]}, "no function"),
        ({"text": {"format": {"type": "json_schema"}}}, "Ask for the format"),
        ({"tool_choice": {"type": "function", "name": "look"}}, "there are none"),
    ],
)
def test_what_cannot_be_done_is_refused(body: dict[str, Any], said: str) -> None:
    with pytest.raises(Refusal, match=said) as refused:
        asked_of({"input": "a", **body})
    assert refused.value.status == 400


def test_a_required_call_is_opened_for_the_policy() -> None:
    """The opening is context, in a first request and in one that goes on; the answer is a call with it."""
    tokenizer = hf(CHATML)
    rest = '{"at": 2}}\n</tool_call>'
    talk = Talk([CALL.split("\n", 1)[1], rest, "no call"], tokenizer)
    first = talk(user("a"), tools=TOOLS, tool_choice="required")
    named = {"type": "function", "function": {"name": "look"}}
    result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "a cup"}
    second = talk(user("a"), first, result, tools=TOOLS, tool_choice=named)
    assert [m["tool_calls"][0]["function"]["arguments"] for m in (first, second)] == ['{"at": 1}', '{"at": 2}']
    [s], [one, two] = talk.episode.sequences, talk.episode.turns
    assert tokenizer.decode(s.ids[: one.start]).endswith("assistant\n<tool_call>\n")
    assert tokenizer.decode(s.ids[one.stop : two.start]).endswith('<tool_call>\n{"name": "look", "arguments": ')
    for turn, before in ((one, s.prompt_len - len("<tool_call>\n")), (two, one.stop)):  # nobody decides the opening
        assert (s.source[before : turn.start] == Source.ENV).all()
    assert two.text == rest
    third = talk(user("b"), tools=TOOLS, tool_choice="required")
    assert third == {"role": "assistant", "content": "<tool_call>\nno call"}  # the policy may not make a call of it


def test_a_session_without_tools_is_as_before() -> None:
    session = Session(Growing(7, "t", "g"), context(Puppet()).tokenizer)
    assert session.plan(asked_of({"input": "a"})).ids.tolist() == session.tokenizer.chat([user("a")]).tolist()
