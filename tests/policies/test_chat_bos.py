"""BOS once where both want to put it: the template, and the tokenizer by itself (as Llama's and Gemma's do)."""

import pytest
from hf_models import chat_tokenizer

pytest.importorskip("transformers")
from tokenizers.processors import TemplateProcessing

from gruppo.policies.hf_tokenizer import HFTokenizer

TEMPLATE = "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>{{ m.content }}"
TEMPLATE += (
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>{% endif %}"
)


def test_a_tokenizer_that_adds_a_bos_adds_none_to_a_template_that_has_one() -> None:
    tok = chat_tokenizer(TEMPLATE)
    bos = tok.convert_tokens_to_ids("<s>")
    tok.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    assert tok("hi")["input_ids"][0] == bos  # by itself it does
    t = HFTokenizer(tok)
    asked = t.chat([{"role": "user", "content": "hi"}])
    assert asked[0] == bos and (asked == bos).sum() == 1 and t.bos == bos
    assert bos not in t.follow([{"role": "user", "content": "more"}]).tolist() and bos not in t.encode("hi").tolist()
