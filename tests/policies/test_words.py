"""The tokenizer of words: what holds for every text, dialogues, folders."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppo.envs import make_env
from gruppo.envs.players import episode, scripted
from gruppo.envs.registry import BUILT_IN
from gruppo.envs.words import vocabulary
from gruppo.policies import CharTokenizer, WordTokenizer
from gruppo.policies.words import SPECIALS
from gruppo.tasks import load_task

TOKENIZER = WordTokenizer(vocabulary())
BOS, EOS, ACT = TOKENIZER.bos, TOKENIZER.eos, TOKENIZER.act
KNOWN = st.sampled_from(vocabulary())
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),  # all of Unicode
    st.text(st.sampled_from("ab1 \n.é")),
    st.lists(st.one_of(KNOWN, st.sampled_from(["", "\n", "cups", "<eos>", "100"]))).map(" ".join),
)


def said(role, text):
    return {"role": role, "content": text}


TALKS = st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(
    lambda turns: [m for seen, done in turns for m in (said("user", seen), said("assistant", done))]
)


# laws


@given(TEXTS)
def test_every_text_comes_back_as_it_was(text):
    ids = TOKENIZER.encode(text)
    assert ids.dtype == np.int64
    assert TOKENIZER.decode(ids) == text
    assert (ids >= len(SPECIALS)).all()  # nothing added, and text never becomes a special token
    assert TOKENIZER.decode([BOS, *ids, ACT, EOS, 0]) == text


@given(st.lists(st.integers(0, TOKENIZER.vocab - 1)))
def test_whatever_is_sampled_is_text(ids):
    text = TOKENIZER.decode(ids)
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.lists(KNOWN))
def test_a_known_word_is_one_token(words):
    assert len(TOKENIZER.encode(" ".join(words))) == len(words)
    assert len(TOKENIZER.encode("\n".join(words))) == max(0, 2 * len(words) - 1)  # at the start of a line, too


@given(TALKS, TEXTS)
def test_a_dialogue_that_goes_on_extends_the_shorter_one(talk, text):
    seen = said("user", text)
    whole = TOKENIZER.chat([*talk, seen])
    if talk:
        assert whole.tolist() == [*TOKENIZER.chat(talk), *TOKENIZER.follow([seen], EOS)]
    assert (whole == BOS).sum() == 1 and whole[0] == BOS and whole[-1] == ACT
    assert (whole == EOS).sum() == len(talk) // 2


@given(TEXTS, st.integers(0, TOKENIZER.vocab - 1))
def test_after_an_action_that_was_cut_off_eos_comes_first(text, last):
    seen = [said("user", text)]
    complete = TOKENIZER.follow(seen, EOS).tolist()
    assert complete == [*TOKENIZER.encode(text), ACT]
    assert TOKENIZER.follow(seen, last).tolist() == (complete if last == EOS else [EOS, *complete])
    assert TOKENIZER.follow(seen).tolist() == [EOS, *complete]


@pytest.mark.parametrize("name", sorted(set(BUILT_IN) - {"python"}))  # programs are no words
def test_worlds_speak_in_known_words_with_few_tokens(name):
    tasks, env = load_task(name), make_env(name)
    for i in range(20):
        for _, action, seen in episode(env, tasks.train[i], scripted(env, 0.5), key=i):
            assert len(TOKENIZER.encode(seen.text)) <= 12
            assert len(TOKENIZER.encode(action)) <= 5
        assert len(TOKENIZER.encode(tasks.train[i].prompt)) == len(tasks.train[i].prompt.split())


# examples


def test_ids():
    first = 4 + 256
    assert TOKENIZER.tokens[:4] == ("<pad>", "<bos>", "<eos>", "<act>")
    assert TOKENIZER.vocab == first + len(vocabulary()) == 574
    assert TOKENIZER.encode("0 99\n").tolist() == [first, first + 99, 4 + 10, 4 + 32]  # a line that is empty
    assert TOKENIZER.encode("no1").tolist() == [4 + b for b in b" no1"]
    assert TOKENIZER.encode("<eos>").tolist() == [4 + b for b in b" <eos>"]
    assert TOKENIZER.encode("").tolist() == []
    assert TOKENIZER.decode([4 + 0xFF]) == "�"


def test_a_dialogue():
    of = TOKENIZER.words()
    task, view = said("user", "put cup in box"), said("user", "in hall box")
    go = said("assistant", "open box")
    start = [BOS, of["Ġput"], of["Ġcup"], of["Ġin"], of["Ġbox"], 14, of["Ġin"], of["Ġhall"], of["Ġbox"], ACT]
    assert TOKENIZER.chat([task, view]).tolist() == start
    assert TOKENIZER.chat([said("user", "put cup in box\nin hall box")]).tolist() == start
    assert TOKENIZER.chat([task, view, go]).tolist() == [*start, of["Ġopen"], of["Ġbox"], EOS]
    with pytest.raises(ValueError, match="calls and results of tools"):
        TOKENIZER.chat([{**go, "tool_calls": [{}]}])
    with pytest.raises(ValueError, match="calls and results of tools"):
        TOKENIZER.follow([said("tool", "4")])


def test_characters_follow_too():
    own = CharTokenizer()
    talk = [said("user", "1+1="), said("user", "2+2=")]
    assert own.follow(talk[:1], own.eos).tolist() == own.encode("1+1=").tolist()
    assert own.follow(talk, 7).tolist() == [own.eos, *own.encode("1+1=\n\n2+2=")]
    assert own.follow(talk[:1]).tolist() == [own.eos, *own.encode("1+1=")]


def test_what_is_refused():
    with pytest.raises(ValueError, match="position 2 is half of a surrogate pair"):
        TOKENIZER.encode("ab\ud800")
    with pytest.raises(ValueError, match=r"id 574 at position 1 is outside 0\.\.573"):
        TOKENIZER.decode([5, 574])
    with pytest.raises(ValueError, match="id -1 at position 0"):
        TOKENIZER.decode([-1])
    with pytest.raises(ValueError, match="'cup' is there twice"):
        WordTokenizer(["cup", "box", "cup"])
    for odd in ("", "two words", "é", "a\n"):
        with pytest.raises(ValueError, match="no word of printable ASCII"):
            WordTokenizer(["cup", odd])


# folders


def test_save_and_load(tmp_path):
    small = WordTokenizer(["cup", "box"])
    small.save(tmp_path)
    assert WordTokenizer.load(tmp_path).words() == small.words()
    assert not CharTokenizer.fits(tmp_path)
    CharTokenizer().save(tmp_path / "characters")
    assert not WordTokenizer.fits(tmp_path / "characters")
    path = tmp_path / "tokenizer.json"
    whole = json.loads(path.read_text())
    for change in ({"ignore_merges": False}, {"merges": [["a", "b"]]}, {"vocab": {"a": 0}}, {"type": "Unigram"}):
        path.write_text(json.dumps(whole | {"model": whole["model"] | change}))
        with pytest.raises(ValueError, match="not the file of a WordTokenizer"):
            WordTokenizer.load(tmp_path)


@pytest.fixture(scope="module")
def auto(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("words")
    TOKENIZER.save(folder)
    tok = transformers.AutoTokenizer.from_pretrained(folder)
    tok.save_pretrained(folder / "resaved")
    assert WordTokenizer.load(folder / "resaved").words() == TOKENIZER.words()
    assert transformers.AutoTokenizer.from_pretrained(folder / "resaved")("cup").input_ids == tok("cup").input_ids
    return tok


@given(text=TEXTS, action=TEXTS, ids=st.lists(st.integers(0, TOKENIZER.vocab - 1)))
def test_auto_tokenizer_gives_the_same_ids_and_texts(auto, text, action, ids):
    talk = [said("user", text), said("assistant", action)]
    assert auto(text, add_special_tokens=False).input_ids == TOKENIZER.encode(text).tolist()
    assert auto(text).input_ids == TOKENIZER.chat(talk[:1]).tolist()
    if action:  # an empty second text is none to transformers
        assert auto(text, action).input_ids == TOKENIZER.chat(talk).tolist()
    assert auto.decode(ids, skip_special_tokens=True) == TOKENIZER.decode(ids)


def test_auto_tokenizer_knows_the_special_tokens(auto):
    assert (auto.pad_token_id, auto.bos_token_id, auto.eos_token_id) == (0, BOS, EOS)
    batch = auto(["cup", "cup box"], padding=True)
    assert set(batch) == {"input_ids", "attention_mask"}  # what a Llama takes
    assert batch.input_ids[0] == [0, *TOKENIZER.chat([said("user", "cup")])]
