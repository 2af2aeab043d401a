"""Policies: a built-in Llama, Hugging Face models, their tokenizers, and loading by name or folder."""

from gruppo.policies.base import Incremental, Policy, clone, learned_state, load_learned
from gruppo.policies.cache import Cache
from gruppo.policies.critic import Critic
from gruppo.policies.folder import TinyConfig
from gruppo.policies.layout import packed
from gruppo.policies.load import load_config, load_policy, load_tokenizer, names
from gruppo.policies.lora import Lora, Unadapted, has_adapter
from gruppo.policies.save import save_policy
from gruppo.policies.tiny import TinyTransformer
from gruppo.policies.tokenizer import CharTokenizer
from gruppo.policies.words import WordTokenizer

__all__ = [
    "Cache", "CharTokenizer", "Critic", "Incremental", "Lora", "Policy", "TinyConfig", "TinyTransformer",
    "Unadapted", "WordTokenizer", "clone", "has_adapter", "learned_state", "load_config", "load_learned",
    "load_policy", "load_tokenizer", "names", "packed", "save_policy",
]  # fmt: skip
