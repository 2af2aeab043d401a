"""Messages of rows: contents in parts, tool calls and tool results; and what a chat template does with them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gruppo.policies import CharTokenizer
from gruppo.tasks import Task, load_task
from gruppo.tasks.fit import refuse_unfit

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(*rows: Any) -> str:
        path = tmp_path / "data.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        return str(path)

    return make


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": t} for t in texts]


def call(name: str, arguments: Any, **own: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **own}


def tooled(ask: str, arguments: Any = None) -> list[dict[str, Any]]:
    """A question, a call of a tool, its result."""
    return [
        {"role": "user", "content": ask},
        {"role": "assistant", "content": None, "tool_calls": [call("add", arguments or {"a": 1}, id="x1")]},
        {"role": "tool", "content": "3", "tool_call_id": "x1", "name": None},
    ]


ANSWER = {"role": "assistant", "content": "It is 3."}


def task_of(file: str) -> Task:
    tasks = load_task(file)
    return min((*tasks.train, *tasks.held_out), key=lambda t: t.prompt)


# ---- rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["prompt", "messages", "conversations"])
def test_parts_are_the_text_they_make_up(write: Write, field: str) -> None:
    def row(ask: Any, said: Any) -> dict[str, Any]:
        talk = [{"role": "system", "content": said}, {"role": "user", "content": ask}]
        return {field: talk, "answer": "x"}

    plain = task_of(write(row("What is it?", "Be short."), row("b", "c")))
    split = task_of(write(row(parts("What", " is it?"), parts("Be short.")), row(["b"], "c")))
    assert plain == split and (split.prompt, split.system) == ("What is it?", "Be short.")  # the uid is equal too


def test_tools_are_kept_in_order(write: Write) -> None:
    task = task_of(write({"messages": [*tooled("a"), ANSWER]}, {"messages": [*tooled("b"), ANSWER]}))
    assert (task.prompt, task.answer) == ("a", "It is 3.") and task.uses_tools
    assert task.messages == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call("add", {"a": 1}, id="x1")]},
        {"role": "tool", "content": "3", "tool_call_id": "x1"},
    ]
    earlier = [*tooled("a"), ANSWER, {"role": "user", "content": "and?"}]
    task = task_of(write({"prompt": earlier, "answer": "4"}, {"prompt": "z", "answer": "4"}))
    assert task.prompt == "and?" and "messages_after" not in task.meta
    assert [m["role"] for m in task.messages] == ["user", "assistant", "tool", "assistant", "user"]


def test_arguments_are_an_object_also_if_they_are_text(write: Write) -> None:
    for given in ('{"a": 1}', {"a": 1}, {"a": 1, "b": None}):
        task = task_of(write({"prompt": tooled("a", given), "answer": "3"}, {"prompt": "z", "answer": "3"}))
        assert task.messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}


def test_other_results_are_other_tasks(write: Write) -> None:
    one, two = tooled("a"), tooled("a")
    two[2] = {**two[2], "content": "4"}
    tasks = load_task(write({"prompt": one, "answer": "3"}, {"prompt": two, "answer": "3"}))
    assert tasks.train[0].uid != tasks.held_out[0].uid


def test_preferences_after_tools(write: Write) -> None:
    def row(ask: str) -> dict[str, Any]:
        return {k: [*tooled(ask), {"role": "assistant", "content": k}] for k in ("chosen", "rejected")}

    task = task_of(write(row("a"), row("b")))
    assert [a["text"] for a in task.meta["answers"]] == ["chosen", "rejected"]
    assert [m["role"] for m in task.messages] == ["user", "assistant", "tool"]
    odd = row("a")
    odd["chosen"][2] = {**odd["chosen"][2], "content": "5"}
    with pytest.raises(ValueError, match="do not begin alike"):
        load_task(write(odd, row("b")))


NO_PICTURE = "message 1 of the field 'messages' has a part of type 'image_url', and a policy reads texts only"
PICTURE = {"type": "image_url", "image_url": {"url": "data:…"}}


@pytest.mark.parametrize(
    ("talk", "said"),
    [
        ([{"role": "user", "content": [*parts("a"), PICTURE]}], NO_PICTURE),
        ([*tooled("a"), {"role": "user", "content": [{"type": "input_audio"}]}], "message 4 .* 'input_audio'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "message 1 .* a part of type 'text'"),
        ([{"role": "user", "content": [7]}], "a part of type None"),
        ([{"role": "user", "content": None}], "the role 'user' and NoneType as content"),
        ([{"role": "robot", "content": "x"}], "the role 'robot'.*system, user, assistant and tool"),
        (tooled("a", "{"), "message 2 .* calls 'add' with arguments that are not JSON: '{'"),
        (tooled("a", "[1]"), "message 2 .* has a tool call that is not"),
        ([{"role": "assistant", "tool_calls": [3]}], "message 1 .* has a tool call that is not"),
        ([{"role": "user", "content": "x", "tool_calls": [call("f", {})]}], "only the assistant calls tools"),
        (tooled("a")[:2], "its last message calls a tool"),
        (tooled("a")[2:], "no turn of the user to answer"),
        ([*tooled("a"), ANSWER, ANSWER], "no turn of the user to answer"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named_by_row_and_field(write: Write, talk: Any, said: str) -> None:
    good = {"messages": [{"role": "user", "content": "x"}, ANSWER]}
    with pytest.raises(ValueError, match=f"line 2: .*{said}"):
        load_task(write(good, {"messages": talk}))


# ---- chat templates ------------------------------------------------------------------------------

EACH = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
END = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
NONE = EACH + "{{ m.content }}" + END
CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
FULL = EACH + "{{ m.content }}" + CALLS + END
NAMES = EACH + "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}" + END
FIRST = EACH + "{{ m.content }}{% if m.tool_calls %}" + CALLS.replace("m.tool_calls or []", "m.tool_calls[:1]")
FIRST += "{% endif %}" + END
MUTE = EACH + "{{ m.content if m.role != 'tool' }}" + CALLS + END
PARTS = EACH + "{% for p in m.content %}{{ p.text }}{% endfor %}" + CALLS + END
NULLS = EACH + "{{ m.content + m.reasoning.text }}" + END


def tokenizer(template: str | None) -> Any:
    pytest.importorskip("transformers")
    from hf_models import chat_tokenizer

    from gruppo.policies.hf_tokenizer import HFTokenizer

    return HFTokenizer(chat_tokenizer(template), name="small")


def talk_of(write: Write) -> list[dict[str, Any]]:
    return task_of(write({"prompt": tooled("a"), "answer": "3"}, {"prompt": "z", "answer": "3"})).messages


@pytest.mark.parametrize("template", [FULL, PARTS])
def test_a_template_with_tools_shows_them(write: Write, template: str) -> None:
    t = tokenizer(template)
    shown = t.tok.decode(t.chat(talk_of(write)))
    assert shown == (
        '<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<call>add {"a": 1}<|im_end|>\n'
        "<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n"
    )
    assert t.takes_parts == (template == PARTS)


@pytest.mark.parametrize(
    ("template", "what"),
    [
        (NONE, "the call of the tool 'add'"),
        (NAMES, "the arguments of the tool 'add'"),
        (MUTE, "the result of a tool"),
    ],
)
def test_a_template_that_does_not_show_tools_is_refused(write: Write, template: str, what: str) -> None:
    with pytest.raises(ValueError, match=f"template of 'small' does not show {what}"):
        tokenizer(template).chat(talk_of(write))
    assert len(tokenizer(template).chat([{"role": "user", "content": "a"}]))  # without tools it serves


def test_every_call_must_be_shown() -> None:
    two = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call("f", {}), call("g", {})]},
    ]
    assert len(tokenizer(FULL).chat([*two, {"role": "user", "content": "b"}]))
    with pytest.raises(ValueError, match="does not show the call of the tool 'g'"):
        tokenizer(FIRST).chat([*two, {"role": "user", "content": "b"}])


def test_a_template_that_fails_is_a_sentence() -> None:
    with pytest.raises(ValueError, match="refuses a dialogue of user"):
        tokenizer(NULLS).chat([{"role": "user", "content": "a"}])


def test_without_a_template_tools_are_refused(write: Write) -> None:
    for t in (CharTokenizer(), tokenizer(None)):
        with pytest.raises(ValueError, match="has no chat template, so calls and results of tools"):
            t.chat(talk_of(write))


def test_the_start_of_a_run_looks_at_tools(write: Write) -> None:
    """Long prompts without tools must not hide a short one with them."""
    plain = [{"prompt": f"{n} " + "x" * 50, "answer": "1"} for n in range(30)]
    tasks = load_task(write(*plain, {"prompt": tooled("0"), "answer": "3"}))
    with pytest.raises(ValueError, match=r"the prompt '0' of .* has no chat template"):
        refuse_unfit(tasks, CharTokenizer(), 200, 5)
