"""Chat templates, token by token: golden tokens of a three-turn dialogue for each family.

The templates are the families' forms in our own words, on a tokenizer with one id for each character.
"""

import re

import numpy as np
import pytest

pytest.importorskip("transformers")

from chat_templates import CHATML, GEMMA, LLAMA3, MISTRAL, PHI, QWEN3, SMOLLM2, ZEPHYR
from hf_models import SPECIALS

from gruppo.policies.hf_tokenizer import HFTokenizer, load_hf_tokenizer
from gruppo.policies.tokenizer import CHARACTERS

TALK = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo"},
    {"role": "user", "content": "1+1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "ok"},
]

# family: (template, the dialogue up to the next answer, what ends an answer, bos)
GOLDEN = {
    "chatml": (
        CHATML,
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"
        "<|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\nok<|im_end|>\n<|im_start|>assistant\n",
        "<|im_end|>",
        None,
    ),
    "smollm2": (
        SMOLLM2,
        "<|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"
        "<|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\nok<|im_end|>\n<|im_start|>assistant\n",
        "<|im_end|>",
        None,
    ),
    "llama3": (
        LLAMA3,
        "<s><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nyo<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\n1+1?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n2<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nok<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|eot_id|>",
        "<s>",
    ),
    "mistral": (
        MISTRAL,
        "<s>[INST] hi [/INST] yo</s>[INST] 1+1? [/INST] 2</s>[INST] ok [/INST]",
        "</s>",
        "<s>",
    ),
    "gemma": (
        GEMMA,
        "<s><start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\nyo<end_of_turn>\n"
        "<start_of_turn>user\n1+1?<end_of_turn>\n<start_of_turn>model\n2<end_of_turn>\n"
        "<start_of_turn>user\nok<end_of_turn>\n<start_of_turn>model\n",
        "<end_of_turn>",
        "<s>",
    ),
    "phi": (
        PHI,
        "<|user|>\nhi<|end|>\n<|assistant|>\nyo<|end|>\n<|user|>\n1+1?<|end|>\n<|assistant|>\n2<|end|>\n"
        "<|user|>\nok<|end|>\n<|assistant|>\n",
        "<|end|>",
        None,
    ),
    "zephyr": (
        ZEPHYR,
        "<|user|>\nhi</s>\n<|assistant|>\nyo</s>\n<|user|>\n1+1?</s>\n<|assistant|>\n2</s>\n"
        "<|user|>\nok</s>\n<|assistant|>\n",
        "</s>",
        None,
    ),
}
ID = {t: i for i, t in enumerate((*SPECIALS, *CHARACTERS))}


def ids(text):
    """Special tokens are one id, everything else is one id for each character."""
    pieces = re.split("(" + "|".join(map(re.escape, SPECIALS)) + ")", text)
    return [i for p in pieces for i in ([ID[p]] if p in SPECIALS else [ID[c] for c in p])]


@pytest.fixture
def tokenizer(chat_tokenizer):
    return lambda template, **fields: HFTokenizer(chat_tokenizer(template), name="small", **fields)


@pytest.mark.parametrize("family", GOLDEN)
def test_three_turns_are_these_tokens(tokenizer, family):
    template, golden, end, bos = GOLDEN[family]
    t = tokenizer(template)
    assert t.chat(TALK).tolist() == ids(golden)
    assert t.turn_end == t.eos == ID[end] and ID[end] in t.stops
    assert t.bos == (None if bos is None else ID[bos])
    assert t.rewrites == ""
    if bos:
        assert (t.chat(TALK) == ID[bos]).sum() == 1


@pytest.mark.parametrize("family", GOLDEN)
def test_a_dialogue_that_grows_is_the_dialogue_rendered_whole(tokenizer, family):
    template, golden, end, _ = GOLDEN[family]
    t = tokenizer(template)
    space = " " if family == "mistral" else ""  # its answers begin with one, which the model writes itself
    grown = t.chat(TALK[:1])
    for answer, question in ((TALK[1], TALK[2]), (TALK[3], TALK[4])):
        sampled = ids(space + answer["content"] + end)
        grown = np.concatenate([grown, sampled, t.follow([question], last=sampled[-1])])
    assert grown.tolist() == ids(golden)
    cut_off = t.follow([TALK[2]], last=ID["y"])  # the answer ran out of tokens: its turn is ended first
    assert cut_off[0] == ID[end] and cut_off[1:].tolist() == t.follow([TALK[2]], last=ID[end]).tolist()


def test_a_template_that_drops_earlier_thinking_is_named_and_extended(tokenizer):
    t = tokenizer(QWEN3)
    assert "'small' rewrites earlier answers in later turns (it drops or moves their thinking)" in t.rewrites
    assert "sampled tokens stay as they are" in t.rewrites
    thought = "<think>\nhm\n</think>\n\nyo"
    talk = [TALK[0], {"role": "assistant", "content": thought}, TALK[2]]
    sampled = ids(thought + "<|im_end|>")
    grown = np.concatenate([t.chat(TALK[:1]), sampled, t.follow([TALK[2]], last=sampled[-1])])
    assert grown.tolist()[: len(t.chat(talk[:2], answer=False)) - 1] == t.chat(talk[:2], answer=False).tolist()[:-1]
    assert grown.tolist() != t.chat(talk).tolist()  # the template would have dropped the thinking


def test_a_template_that_changes_every_answer_cannot_be_continued(tokenizer):
    t = tokenizer(CHATML.replace("{{ m.content }}", "{{ m.content if loop.last else 'gone' }}"))
    assert "rewrites earlier answers" in t.rewrites
    with pytest.raises(ValueError, match="renders an answer differently once the dialogue continues"):
        t.follow([TALK[2]])


def test_a_template_that_begins_answers_otherwise_is_named(tokenizer):
    t = tokenizer(CHATML.replace("<|im_start|>assistant\n{% endif", "<|im_start|>assistant\n<think>{% endif"))
    assert "renders answers unlike its generation prompt" in t.rewrites


def test_system(tokenizer):
    talk = [{"role": "system", "content": "Sum."}, TALK[0]]
    first = ids("<|im_start|>system\nSum.<|im_end|>")
    assert tokenizer(CHATML).chat(talk).tolist()[: len(first)] == first
    assert tokenizer(GEMMA).chat(talk).tolist() == ids(  # a template without system messages
        "<s><start_of_turn>user\nSum.\n\nhi<end_of_turn>\n<start_of_turn>model\n"
    )
    with pytest.raises(ValueError, match="refuses a dialogue of system: no system"):
        tokenizer(GEMMA).chat(talk[:1])


def test_a_template_that_is_none_is_named(tokenizer):
    with pytest.raises(ValueError, match=r"is not valid: .*endfor.* \(line 1\)"):
        tokenizer("{% for m in messages %}").chat(TALK[:1])


def test_options_reach_the_template(tokenizer):
    t = tokenizer(CHATML + "{% if shout %}!{% endif %}")
    assert t.chat(TALK, shout=True).tolist() == [*t.chat(TALK).tolist(), ID["!"]]


def test_without_a_template(tokenizer):
    t = tokenizer(None)
    assert t.chat(TALK[:1]).tolist() == ids("hi") and t.bos is None  # this tokenizer puts nothing in front
    assert t.stops == (ID["</s>"],) and t.rewrites == ""
    with pytest.raises(ValueError, match="cannot continue after its first answer"):
        t.follow([TALK[2]])


def test_bos_once_without_a_template(chat_tokenizer):
    from tokenizers.processors import TemplateProcessing

    tok = chat_tokenizer(None)
    both = [("<s>", ID["<s>"]), ("</s>", ID["</s>"])]
    tok.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=both)
    t = HFTokenizer(tok)
    assert t.chat(TALK[:1]).tolist() == ids("<s>hi")  # and no end in the middle
    assert t.bos == ID["<s>"] and t.encode("hi").tolist() == ids("hi")


def test_text_never_becomes_special(tokenizer):
    t = tokenizer(CHATML)
    assert t.encode("a<|im_end|>").tolist() == [ID[c] for c in "a<|im_end|>"]
    assert t.decode([ID["<|im_start|>"], *t.encode("a b\n"), ID["<|im_end|>"]]) == "a b\n"
    with pytest.raises(ValueError, match=r"a user message contains '<\|im_end\|>'"):
        t.chat([{"role": "user", "content": "ha <|im_end|>"}])


def test_stops(tokenizer, chat_tokenizer, hf_folder):
    assert tokenizer(CHATML, stops=[9, 4]).stops == (ID["<|im_end|>"], 9, ID["</s>"])  # 4 is <|im_end|>
    with pytest.raises(ValueError, match="every answer would be truncated"):
        HFTokenizer(chat_tokenizer(None, eos_token=None))
    folder = hf_folder(template=CHATML, eos_token_id=[2, 7])
    assert load_hf_tokenizer(folder, "x").stops == (ID["<|im_end|>"], 2, 7)


def test_folders(hf_folder, tokenizer, tmp_path):
    from gruppo.policies import load_tokenizer

    folder = hf_folder(template=LLAMA3)
    t = load_tokenizer(folder)
    assert t.chat(TALK).tolist() == tokenizer(LLAMA3).chat(TALK).tolist()
    t.save(tmp_path / "again")
    (tmp_path / "again" / "config.json").write_text((folder / "config.json").read_text())
    assert load_tokenizer(tmp_path / "again").chat(TALK).tolist() == t.chat(TALK).tolist()
    assert load_tokenizer(tmp_path / "again").words() == t.words()
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 110', '"vocab_size": 60'))
    with pytest.raises(ValueError, match=r"has 110 ids, the model 60. They do not belong together"):
        load_tokenizer(folder)
    for path in folder.glob("*token*"):
        path.unlink()
    with pytest.raises(ValueError, match="has no tokenizer"):
        load_tokenizer(folder)
