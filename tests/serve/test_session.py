"""Calls become sequences: what was sampled stays as it is, and only what is new is rendered."""

import asyncio
from typing import Any

import numpy as np
import pytest
from chat_templates import EXTENDED
from served import Puppet, context

from gruppo.data import Episode, Growing, Source
from gruppo.policies import CharTokenizer, WordTokenizer
from gruppo.serve.chat import Answer, Asked
from gruppo.serve.endpoint import Endpoint
from gruppo.serve.http import Refusal
from gruppo.serve.session import Session

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CHATML = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


class Talk:
    """Calls of one episode, without a network."""

    def __init__(self, said: Any, tokenizer: Any = None, room: int = 1024) -> None:
        tokenizer = tokenizer or CharTokenizer()
        self.engine = Puppet(said, tokenizer, room)
        ctx, self.told = context(self.engine, 64, tokenizer), list[str]()
        self.session = Session(Growing(7, "t", "g"), tokenizer)
        self.endpoint = Endpoint(ctx, "m", lambda *_: self.session, lambda _: ctx.sampling, say=self.told.append)

    def run(self, asked: Asked) -> Answer:
        return asyncio.run(self.endpoint.answer(self.session, asked))

    def all(self, *calls: Any, **options: Any) -> list[Answer]:
        """Calls at once."""

        async def ask() -> list[Answer]:
            asked = [Asked.of({"messages": list(c), **options}) for c in calls]
            return list(await asyncio.gather(*(self.endpoint.answer(self.session, a) for a in asked)))

        return asyncio.run(ask())

    def __call__(self, *messages: Any, **options: Any) -> dict[str, Any]:
        return self.all(messages, **options)[0].message

    @property
    def episode(self) -> Episode:
        return self.session.grown.finish()


def hf(template: str) -> Any:
    pytest.importorskip("transformers")
    from hf_models import chat_tokenizer

    from gruppo.policies.hf_tokenizer import HFTokenizer

    return HFTokenizer(chat_tokenizer(template))


@pytest.mark.parametrize("kind", ["characters", "words", "template"])
@pytest.mark.parametrize("cut", ["", "…"])
def test_two_turns_are_one_sequence_with_the_sampled_ids(kind: str, cut: str) -> None:
    made = {"characters": CharTokenizer, "words": lambda: WordTokenizer(["go"]), "template": lambda: hf(CHATML)}
    tokenizer = made[kind]()
    talk = Talk(["  one " + cut, "two"], tokenizer)
    first = talk(user("a"))
    talk(user("a"), first, user("b"))
    [s], turns = talk.episode.sequences, talk.episode.turns
    one = tokenizer.encode("  one ")
    one = one if cut else np.append(one, tokenizer.eos)
    head = tokenizer.chat([user("a")])
    seen = tokenizer.follow([user("b")], int(one[-1]))
    two = np.append(tokenizer.encode("two"), tokenizer.eos)
    assert s.ids.tolist() == np.concatenate([head, one, seen, two]).tolist()
    spans = [(t.start, t.stop) for t in turns]
    assert [s.ids[a:b].tolist() for a, b in spans] == [one.tolist(), two.tolist()]
    assert (s.source == Source.POLICY).sum() == len(one) + len(two)
    assert talk.engine.asked[1].prefix.tolist() == s.ids[: spans[1][0]].tolist()
    assert ["truncated" in t.flags for t in turns] == [bool(cut), False] and not talk.told


def test_white_space_around_an_answer_is_no_edit_and_other_words_are() -> None:
    talk = Talk([" one ", "two", "three"])
    talk(user("a"))
    talk(user("a"), {"role": "assistant", "content": "one"}, user("b"))
    assert len(talk.episode.sequences) == 1
    talk(user("a"), {"role": "assistant", "content": "ONE"}, user("b"))
    assert len(talk.episode.sequences) == 2


def test_an_edited_history_is_a_new_sequence_and_told_once() -> None:
    talk = Talk(["one", "two", "three", "four"])
    first = talk(user("a"))
    talk(user("A"), first, user("b"))
    third = talk(user("sum: b"))
    talk(user("sum: b"), third, user("c"))
    e, chat = talk.episode, talk.session.tokenizer.chat
    assert [t.sequence for t in e.turns] == [0, 1, 2, 2]
    assert e.sequences[1].ids[: e.sequences[1].prompt_len].tolist() == chat([user("A"), first, user("b")]).tolist()
    assert len(talk.told) == 1 and "new sequence" in talk.told[0]
    assert len({r.key for r in talk.engine.asked}) == 3  # of the contexts


def test_a_second_try_from_an_earlier_point_is_a_branch_with_the_sampled_ids() -> None:
    talk = Talk([" one", "two", "three"])
    first = talk(user("a"))
    talk(user("a"), first, user("b"))
    talk(user("a"), first, user("c"))
    e = talk.episode
    assert [t.sequence for t in e.turns] == [0, 0, 1]
    stop = e.turns[0].stop
    assert e.sequences[0].ids[:stop].tolist() == e.sequences[1].ids[:stop].tolist()
    assert (e.sequences[1].source[:stop] == Source.ENV).all()  # learned from once
    assert not talk.told


def test_equal_calls_at_once_have_their_own_luck() -> None:
    """And different ones have the same keys in whatever order they come."""
    a, b = [user("a")], [user("b")]
    talk, other = Talk([]), Talk([])
    talk.all(a, a, a, b)
    other.all(b, a, a, a)
    assert len(talk.episode.sequences) == 4
    keys = [sorted((r.prefix.tolist(), r.key) for r in t.engine.asked) for t in (talk, other)]
    assert keys[0] == keys[1] and len({k for _, k in keys[0]}) == 4


def test_two_calls_at_once_from_one_answer_do_not_share_a_place() -> None:
    talk = Talk(["one", "two", "three"])
    first = talk(user("a"))
    talk.all([user("a"), first, user("b")], [user("a"), first, user("c")])
    e = talk.episode
    assert sorted(t.sequence for t in e.turns) == [0, 0, 1]
    for t in e.turns:
        assert (e.sequences[t.sequence].source[t.start : t.stop] == Source.POLICY).all()


def test_calls_of_tools_go_out_and_come_back() -> None:
    tokenizer = hf(CHATML)
    call = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
    talk = Talk([f"hm {call}", "done"], tokenizer)
    said = talk(user("a"), tools=TOOLS)
    [[made]] = [t.tools for t in talk.episode.turns]
    assert (made.name, made.ok) == ("look", True) and made.arguments == said["tool_calls"][0]["function"]["arguments"]
    assert said["content"] == "hm" and said["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at": 1}'}
    result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "a cup"}
    talk(user("a"), said, result, tools=TOOLS)
    [s] = talk.episode.sequences
    assert tokenizer.decode(s.ids[talk.episode.turns[0].start :]).startswith(f"hm {call}") and not talk.told
    assert "[look]" in tokenizer.decode(s.ids[: s.prompt_len]) and "a cup" in tokenizer.decode(s.ids)


def test_tools_that_cannot_be_seen_are_refused() -> None:
    with pytest.raises(Refusal, match="no chat template"):
        Talk([])(user("a"), tools=TOOLS)
    from hf_models import CHATML as WITHOUT

    with pytest.raises(Refusal, match="does not show them"):
        Talk([], hf(WITHOUT))(user("a"), tools=TOOLS)


def test_stops_are_cut_off_for_the_program_and_stay_in_the_tokens() -> None:
    talk = Talk(["one.two", "three"])
    first = talk(user("a"), stop=["."])
    assert first["content"] == "one" and talk.engine.asked[0].stop_text == (".",)
    talk(user("a"), first, user("b"))
    assert len(talk.episode.sequences) == 1 and "one.two" in CharTokenizer().decode(talk.episode.sequences[0].ids)


def test_a_context_that_is_full_is_refused_with_the_remedy_and_changes_nothing() -> None:
    talk = Talk(["one"], room=8)
    first = talk(user("abc"))
    assert talk.engine.asked[0].max_tokens == 4  # what is left
    with pytest.raises(Refusal, match=r"the context of this policy has 8.*Shorten") as refused:
        talk(user("abc"), first, user("d"))
    assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
    assert len(talk.episode.turns) == 1
    talk(user("d"))
    assert len(talk.episode.turns) == 2
    assert all(t.seconds > 0 for t in talk.episode.turns)  # from the call to its answer


def test_the_sampling_of_a_run_holds_whatever_a_program_asks_for() -> None:
    talk = Talk([])
    for _ in range(2):
        talk(user("a"), temperature=0.1, top_p=0.5, max_tokens=3)
    r = talk.engine.asked[0]
    assert (r.temperature, r.top_p, r.max_tokens) == (1.0, 1.0, 3)
    assert len([s for s in talk.told if "temperature=0.1" in s]) == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"messages": []}, "missing or empty"),
        ({"messages": "a"}, "missing or empty"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\]"),
        ({"messages": [{"role": "king", "content": "a"}]}, "king"),
        ({"messages": [3]}, "int"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "no pictures"),
        ({"n": 2}, "Ask several times"),
        ({"response_format": {"type": "json_object"}}, "Ask for the format"),
        ({"temperature": "hot"}, "not a number"),
        ({"max_tokens": 0}, "not a whole number"),
        ({"stop": [""]}, "neither a text nor"),
        ({"tools": [1]}, "no function"),
        ({"tool_choice": "required"}, "there are none"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "lock"}}}, "one of tools .look."),
        ({"tools": TOOLS, "tool_choice": "always"}, "auto"),
    ],
)
def test_bad_requests_are_refused_with_a_sentence(body: dict[str, Any], said: str) -> None:
    with pytest.raises(Refusal, match=said) as refused:
        Asked.of({"messages": [user("a")], **body})
    assert refused.value.status == 400


@pytest.mark.parametrize("name", EXTENDED)
def test_three_served_turns_in_every_template(name: str) -> None:
    """Pitfalls 1 to 4 for a program of the user: sampled ids, one sequence, one start of each answer, one bos."""
    tokenizer = hf(EXTENDED[name])
    talk, messages = Talk(["one", "two", "three"], tokenizer), [user("a")]
    for word in "bcd":
        messages += [talk(*messages), user(word)]
    [s], turns = talk.episode.sequences, talk.episode.turns
    said = [np.append(tokenizer.encode(text), tokenizer.eos).tolist() for text in ("one", "two", "three")]
    assert [s.ids[t.start : t.stop].tolist() for t in turns] == said
    assert [list(r.prefix) for r in talk.engine.asked] == [s.ids[: t.start].tolist() for t in turns]
    if tokenizer.bos is not None:
        assert (s.ids == tokenizer.bos).sum() == 1 and s.ids[0] == tokenizer.bos
    if name != "mistral":  # which puts a blank before an answer: all others render at once what was extended
        assert s.ids[: turns[-1].start].tolist() == tokenizer.chat(messages[:5]).tolist()
