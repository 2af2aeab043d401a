"""A small random policy with a chat template that shows tools, whose vocabulary has whole calls as single tokens.

So it calls tools now and then before it has learned anything, and a run with tools takes seconds.
"""

from pathlib import Path

import torch
from hf_models import hf_model
from test_session import CHATML

WORDS = ("<pad>", "</s>", "<|im_start|>", "<|im_end|>", *"0123456789", "box", "opens", "not", "done")


def call(key: int) -> str:
    return f'<tool_call>\n{{"name": "try_key", "arguments": {{"key": {key}}}}}\n</tool_call>'


def phrase_folder(folder: Path) -> Path:
    """Model and tokenizer, as transformers writes them. Words that it does not know are <pad>."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers

    words = {w: i for i, w in enumerate(WORDS)}
    core = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[A-Za-z]+|[\s\S]"), "isolated")  # type: ignore
    core.decoder = decoders.Fuse()  # type: ignore[assignment]
    core.add_special_tokens(list(WORDS[:4]))
    tok = transformers.PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<|im_end|>")
    tok.add_tokens([call(key) for key in range(4)])
    tok.chat_template = CHATML
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "max_position_embeddings": 1024, "eos_token_id": words["<|im_end|>"]}
    model = hf_model("llama_untied", vocab=len(tok), dtype=torch.float32, **shape)
    model.lm_head.weight.data *= 0.1  # so that at first all words are about as likely
    model.save_pretrained(folder)
    tok.save_pretrained(folder)
    return folder
