"""How a turn is read: thought, tag, action; void and invalid are flags, never exceptions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppo.data.episode import FLAGS
from gruppo.envs.format import FORMATS, Line, Said, Tags, format_of
from gruppo.envs.hostile import HOSTILE


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("line", "go hall", Said("go hall")),
        ("line", "I should look.\n\n go hall \n", Said("go hall", "I should look.")),
        ("line", " \n", Said(void=True)),
        ("line:explore", "go hall", Said("go hall", tag="explore")),
        ("tags", "<think>hm</think><action>go hall</action>", Said("go hall", "hm", "think")),
        ("tags", "<action> go hall </action>", Said("go hall")),
        ("tags", "go hall", Said(void=True)),
        ("tags", "<think>hm</think>", Said("", "hm", "think", void=True)),
        ("tags", "<action>go hall", Said(invalid=True)),
        ("tags", "<action></action>", Said(invalid=True)),
        ("tags", "<action>up</action><action>down</action>", Said(invalid=True)),
        (
            "rlvmr",
            "<reflection>b</reflection><planning>a</planning><action>up</action>",
            Said("up", "a\nb", "planning"),
        ),
        ("rlvmr", "<monitor>m</monitor><action>up</action>", Said("up", "m", "monitor")),
        ("tags:plan,look:do", "<look>l</look><do>up</do>", Said("up", "l", "look")),
        ("words:answer,+", "answer 3", Said("answer 3")),
        ("words:answer,+", "well\n3 + 4", Said("3 + 4", "well")),
        ("words:answer,+", "3+4", Said("", "3+4", void=True)),
        ("words:answer,+", "answer\nthen", Said("", "answer\nthen", void=True)),
        ("words:answer,+", "", Said(void=True)),
        ("json", 'Well. {"action": "go hall"}', Said("go hall", "Well.")),
        ("json", '{"name": "go", "arguments": {"room": "hall"}}', Said("go hall")),
        ("json", '{"function": {"name": "open", "arguments": "{\\"n\\": 2}"}}', Said("open 2")),
        ("json", '{"name": "look"}', Said("look")),
        ("json", "go hall", Said("", "go hall", void=True)),
        ("json", '{"action": "go hall"', Said("", '{"action": "go hall"', invalid=True)),
        ("json", '{"action": 3}', Said(invalid=True)),
        ("json", '{"action": "up"} {"action": "down"}', Said(invalid=True)),
        ("json", '{"name": "go", "arguments": {"room": ["hall"]}}', Said(invalid=True)),
        ("json", '{"thing": 1}', Said("", '{"thing": 1}', void=True)),
    ],
)
def test_read(name: str, text: str, said: Said) -> None:
    assert format_of(name)(text) == said


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(FORMATS)), st.text() | st.text('<>/{}":action think', max_size=80))
def test_no_text_raises_and_flags_are_those_of_turns(name: str, text: str) -> None:
    said = format_of(name)(text)
    assert said.flags <= set(FLAGS)
    assert not (said.void and said.invalid)
    assert bool(said.action) == (not said.flags)


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_texts(name: str) -> None:
    for text in (*HOSTILE, "{" * 5_000, "<action>" * 5_000, '{"a":' * 3_000):
        format_of(name)(text)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="Did you mean 'tags'"):
        format_of("tag")
    with pytest.raises(ValueError, match="thought and action"):
        Tags(("a",), "a")
    with pytest.raises(ValueError, match="letters"):
        Tags(("a b",))
    assert isinstance(format_of("line"), Line)


@pytest.mark.parametrize("name", ["words", "words:", "words:go,", "words:go,a b"])
def test_words_that_no_line_could_have(name: str) -> None:
    with pytest.raises(ValueError, match="no line could have them"):
        format_of(name)
