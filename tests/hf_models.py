"""Small Hugging Face models and a small tokenizer, made here: nothing is downloaded."""

from pathlib import Path
from typing import Any

import torch

from gruppo.policies.tokenizer import CHARACTERS

SHAPE = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 24}
SHAPE |= {"max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
GQA = {**SHAPE, "num_key_value_heads": 2}
GEMMA = {**GQA, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 48}
GPT2 = {"n_embd": 16, "n_layer": 3, "n_head": 4, "n_positions": 64, "bos_token_id": None, "eos_token_id": 2}

# name: (class of the configuration, its fields)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {**GQA, "tie_word_embeddings": True}),
    "llama_untied": ("LlamaConfig", GQA),
    "llama3": (
        "LlamaConfig",
        {**GQA, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    ),
    "qwen2": ("Qwen2Config", GQA),
    "qwen3": ("Qwen3Config", {**GQA, "head_dim": 8}),
    "mistral": ("MistralConfig", {**GQA, "sliding_window": 48}),
    "gpt2": ("GPT2Config", GPT2),
    "gpt_neox": ("GPTNeoXConfig", SHAPE),
    "gemma2": ("Gemma2Config", {**GEMMA, "final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3TextConfig", GEMMA),
    "phi3": ("Phi3Config", GQA),
    "granite": ("GraniteConfig", {**GQA, "logits_scaling": 2.0}),
    "cohere": ("CohereConfig", {**GQA, "logit_scale": 0.5}),
}


SPECIALS = ("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>")
SPECIALS += ("<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CHATML += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def hf_model(family: str, vocab: int = 40, dtype: torch.dtype = torch.float64, **fields: Any) -> Any:
    """A random model of a family; weights are large enough that a wrong one shows."""
    import transformers

    config, shape = FAMILIES[family]
    config = getattr(transformers, config)(vocab_size=vocab, **{**shape, **fields})
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.copy_(0.3 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return model


def chat_tokenizer(template: str | None = None, **fields: Any) -> Any:
    """A tokenizer of transformers: the special tokens above, and one id for each character."""
    import tokenizers
    import transformers
    from tokenizers import decoders, models, pre_tokenizers

    words = {t: i for i, t in enumerate((*SPECIALS, *CHARACTERS))}
    core = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")  # type: ignore[assignment]
    core.decoder = decoders.Fuse()  # type: ignore[assignment]
    core.add_special_tokens(list(SPECIALS))
    named = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", **fields}
    tok = transformers.PreTrainedTokenizerFast(tokenizer_object=core, **named)
    tok.chat_template = template
    return tok


def hf_folder(
    folder: Path, family: str = "llama", template: str | None = None, dtype: torch.dtype = torch.float32, **fields: Any
) -> Path:
    """A folder as transformers writes it: model and tokenizer."""
    tok = chat_tokenizer(template)
    hf_model(family, vocab=len(tok), dtype=dtype, **fields).save_pretrained(folder)
    tok.save_pretrained(folder)
    return folder


# Shapes that our own transformer computes

SIZE = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
SIZE |= {"num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": 2}
# With heads of 16 and 32 positions some frequencies are kept, some divided and some between the two.
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32, "rope_theta": 10000.0}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-2}),
    "llama3": ("Llama", {"head_dim": 16, "rope_parameters": LLAMA3}),
    "linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}}),
    "biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("Qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen2_tied": ("Qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "qwen3": ("Qwen3", {"head_dim": 12, "rms_norm_eps": 1e-2}),
    "qwen3_biases": ("Qwen3", {"head_dim": 6, "attention_bias": True, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"head_dim": 10, "sliding_window": 48}),
}


def random_model(shape: str, dtype: torch.dtype = torch.float32, **fields: Any) -> Any:
    """A model of a shape. Norms and biases are random too: at 1 and 0 a forgotten one would not show."""
    import transformers

    kind, given = SHAPES[shape]
    config = getattr(transformers, f"{kind}Config")(**SIZE | given | fields)
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = 0.3 * torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.copy_(noise + 1 if name.endswith("norm.weight") else noise)
    return model
