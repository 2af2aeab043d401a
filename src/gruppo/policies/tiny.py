"""A transformer with RMSNorm, RoPE and SwiGLU: Llama, Mistral, Qwen2, Qwen3. transformers loads what it saves.

    x ← x + Wo · attention(rope(Wq n), rope(Wk n), Wv n),   n = rmsnorm(x)
    x ← x + Wd · (silu(Wg n) ⊙ Wu n),                       n = rmsnorm(x)
    logits = E · rmsnorm(x),                                E the embedding, or a matrix of its own

`TinyConfig` may add biases, and norms of queries and keys: rope(rmsnorm(Wq n + b)), head by head.
Everything but attention runs on packed positions (M, dim); `layout` says how attention sees them.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from gruppo.data import Inputs
from gruppo.kernels.rms import rms_norm
from gruppo.kernels.rope import turn
from gruppo.kernels.scores import scores
from gruppo.kernels.swiglu import silu_times
from gruppo.kernels.varlen import can_varlen
from gruppo.policies import folder as hf
from gruppo.policies.base import Transformer
from gruppo.policies.cache import Cache, Kept, Step, new_cache
from gruppo.policies.graphed import replayed
from gruppo.policies.layout import Layout, Past, layout_of
from gruppo.policies.lora import merged_state
from gruppo.policies.rope import tables
from gruppo.policies.scores import Head
from gruppo.policies.shape import TinyConfig, write_shape
from gruppo.policies.tokenizer import CharTokenizer
from gruppo.policies.varlen import Varlen, varlen_of
from gruppo.policies.words import WordTokenizer


class Rotary(NamedTuple):
    """cos and sin of the positions at hand, (X, 1, dh); sin carries the sign of the half that it multiplies."""

    cos: Tensor
    sin: Tensor

    def turn(self, x_XHd: Tensor) -> Tensor:
        """RoPE (Su et al. 2021) on halves: (a, b) → (a cos - b sin, b cos + a sin)."""
        return turn(x_XHd, self.cos, self.sin)


@dataclass(frozen=True)
class Packed:
    """Attention over packed sequences: every position attends to its own past."""

    layout: Layout
    keep: Kept | None
    past: Past | None = None

    def attend(self, sdpa: Callable[..., Tensor], layer: int, q_MD: Tensor, k_MD: Tensor, v_MD: Tensor) -> Tensor:
        if self.keep is not None:
            self.keep.kv += [k_MD, v_MD]
        layout = self.layout
        if self.past is not None and layout.key_C is not None:
            k_MD, v_MD = (torch.cat([known, x]) for known, x in zip(self.past.kv[layer], (k_MD, v_MD), strict=True))
        lines = zip(layout.lines(q_MD), layout.paths(k_MD), layout.paths(v_MD), layout.masks, strict=True)
        y = [sdpa(*line) for line in lines]
        return layout.positions(y) if y else q_MD


@dataclass(frozen=True)
class Cached:
    """Attention of one query per row over the cached keys of the row."""

    step: Step
    mask: Tensor

    def attend(self, sdpa: Callable[..., Tensor], layer: int, q_BD: Tensor, k_BD: Tensor, v_BD: Tensor) -> Tensor:
        k_BTD, v_BTD = self.step.write(layer, k_BD, v_BD)
        return sdpa(q_BD[:, None], k_BTD, v_BTD, self.mask)[:, 0]


def _kernels(device: torch.device) -> AbstractContextManager[object]:
    """Attention without cuDNN, which prepares a plan for every new shape; packed and decoded shapes rarely repeat.

    With it, 4,096 completions of 100 tokens in bfloat16 took 11.5 s on an H200, without it 1.8 s.
    """
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


class Linear(nn.Linear):
    """Its weights are whatever was in memory: PyTorch's own would be drawn from the global generator."""

    def reset_parameters(self) -> None:  # skip_init does the same on the meta device, nine times as slow
        pass


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x_XD: Tensor) -> Tensor:
        return rms_norm(x_XD, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.dh, self.heads, self.kv_heads = config.head_dim, config.heads, config.kv_heads
        wide, narrow = self.heads * self.dh, self.kv_heads * self.dh
        self.q_proj = Linear(config.dim, wide, config.qkv_bias)
        self.k_proj = Linear(config.dim, narrow, config.qkv_bias)
        self.v_proj = Linear(config.dim, narrow, config.qkv_bias)
        self.o_proj = Linear(wide, config.dim, config.o_bias)
        self.q_norm = RMSNorm(self.dh, config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(self.dh, config.norm_eps) if config.qk_norm else None

    def forward(self, x_XD: Tensor, rotary: Rotary, past: Packed | Varlen | Cached, layer: int) -> Tensor:
        q_XHd = self.q_proj(x_XD).unflatten(-1, (self.heads, self.dh))
        k_XHd = self.k_proj(x_XD).unflatten(-1, (self.kv_heads, self.dh))
        if self.q_norm is not None and self.k_norm is not None:
            q_XHd, k_XHd = self.q_norm(q_XHd), self.k_norm(k_XHd)
        q_XD, k_XD = rotary.turn(q_XHd).flatten(1), rotary.turn(k_XHd).flatten(1)
        return self.o_proj(past.attend(self._sdpa, layer, q_XD, k_XD, self.v_proj(x_XD)))

    def _sdpa(self, q_BTD: Tensor, k_BTD: Tensor, v_BTD: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (x.unflatten(-1, (-1, self.dh)).transpose(1, 2) for x in (q_BTD, k_BTD, v_BTD))
        shared = self.heads != self.kv_heads
        with _kernels(q.device):
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=shared)
        return y.transpose(1, 2).flatten(2)


class MLP(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.dim, config.ffn, config.mlp_bias)
        self.up_proj = Linear(config.dim, config.ffn, config.mlp_bias)
        self.down_proj = Linear(config.ffn, config.dim, config.mlp_bias)

    def forward(self, x_XD: Tensor) -> Tensor:
        return self.down_proj(silu_times(self.gate_proj(x_XD), self.up_proj(x_XD)))


class Block(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.dim, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.dim, config.norm_eps)
        self.mlp = MLP(config)

    def forward(self, x_XD: Tensor, rotary: Rotary, past: Packed | Varlen | Cached, layer: int) -> Tensor:
        x_XD = x_XD + self.self_attn(self.input_layernorm(x_XD), rotary, past, layer)
        return x_XD + self.mlp(self.post_attention_layernorm(x_XD))


class Trunk(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        # Not skip_init, which imports torch._dynamo for an embedding: 1.5 s where nothing is trained.
        self.embed_tokens = nn.Embedding(config.vocab, config.dim, _weight=torch.empty(config.vocab, config.dim))
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)


class OwnHead(Head):
    """A head with weights of its own, for embeddings that are not tied."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.vocab, config.dim))

    def forward(self, hidden_XD: Tensor) -> Tensor:
        return scores(hidden_XD, self.weight)


class TinyTransformer(Transformer):
    """Hugging Face's parameter names. Weights start as normal(0, 0.02) and biases as 0, from the seed alone.

    Without a seed they are whatever was in memory, for a caller who loads others.
    """

    plain_head = True  # logits are hidden states times `output.weight`, and nothing else
    checkpointing = False  # blocks are computed again in the backward pass

    def __init__(self, config: TinyConfig | None = None, seed: int | None = 0) -> None:
        super().__init__()
        self.config = config = config or TinyConfig()
        self.dim, self.vocab, self.layers, self.context = config.dim, config.vocab, config.layers, config.context
        self.model = Trunk(config)
        self.lm_head = Head() if config.tied else OwnHead(config)
        self.files: dict[str, dict[str, Any]] = {}  # JSON files of the folder it was loaded from, to be saved again
        cos_PD, sin_PD = tables(config.context, config.head_dim, config.rope_base, config.rope)
        self.register_buffer("rope_cos", cos_PD, persistent=False)
        self.register_buffer("rope_sin", sin_PD, persistent=False)
        if seed is not None:
            self._draw(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _draw(self, generator: torch.Generator) -> None:
        for name, w in self.named_parameters():
            if w.dim() > 1:
                w.normal_(0.0, 0.02, generator=generator)
            elif name.endswith(".bias"):
                w.zero_()

    @property
    def trunk(self) -> nn.Module:
        return self.model

    @property
    def output(self) -> nn.Embedding | OwnHead:
        return self.model.embed_tokens if self.config.tied else cast(OwnHead, self.lm_head)

    @property
    def described(self) -> dict[str, Any]:
        return self.files.get("config.json") or write_shape(self.config)

    @property
    def head(self) -> Head:
        # It needs no owner, and would not be freed at once if it were its own.
        return super().head if self.config.tied else self.lm_head

    @property
    def device(self) -> torch.device:
        return self.output.weight.device

    def _rotary(self, pos_X: Tensor) -> Rotary:
        return Rotary(self.rope_cos[pos_X][:, None], self.rope_sin[pos_X][:, None])  # type: ignore[index]

    def forward(
        self,
        inputs: Inputs | Step,
        collect: tuple[int, ...] = (),
        keep: Kept | None = None,
        past: Past | None = None,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Final hidden states and those of the layers in `collect`, of packed sequences or of a decoding step."""
        self._check_layers(collect)
        x_XD = self.model.embed_tokens(inputs.ids_M)
        if isinstance(inputs, Step):
            seen = Cached(inputs, inputs.mask(x_XD.dtype))
        elif can_varlen(x_XD, self.config.head_dim):
            seen = varlen_of(inputs, self.context, keep, past)
        else:
            seen = Packed(layout_of(inputs, self.context, x_XD.dtype, past), keep, past)
        learns = torch.is_grad_enabled() and keep is None
        again = self.checkpointing and learns and not isinstance(seen, Cached)
        if learns and isinstance(seen, Varlen) and past is None and not (again or collect) and is_plain(self):
            y_MD = replayed(self, x_XD, inputs.pos_M, seen)
            if y_MD is not None:
                return y_MD, {}
        rotary = self._rotary(inputs.pos_M)
        states = {0: x_XD} if 0 in collect else {}
        for layer, block in enumerate(self.model.layers):
            if again:  # nothing in a block is random
                x_XD = checkpoint(block, x_XD, rotary, seen, layer, use_reentrant=False, preserve_rng_state=False)
            else:
                x_XD = block(x_XD, rotary, seen, layer)
            if layer + 1 in collect:
                states[layer + 1] = x_XD
        return self.model.norm(x_XD), {layer: states[layer] for layer in collect}

    def cache(self, rows: int, span: int) -> Cache:
        width = self.config.kv_heads * self.config.head_dim
        return new_cache(self.layers, rows, span, width, like=self.model.embed_tokens.weight)

    # folders

    def save(
        self,
        folder: str | Path,
        tokenizer: CharTokenizer | WordTokenizer | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Write a folder that transformers loads with the same logits, with any adapter merged into the weights.

        `dtype` is that of the file. The character tokenizer is the default where the vocabulary is its own.
        """
        if tokenizer is None and self.vocab == CharTokenizer.vocab:
            tokenizer = CharTokenizer()
        ids = {} if tokenizer is None else {"pad": tokenizer.pad, "bos": tokenizer.bos, "eos": tokenizer.eos}
        stored = hf.cast(merged_state(self), dtype or self.model.embed_tokens.weight.dtype, "cpu")
        hf.write(folder, self.config, stored, ids, self.files)
        if tokenizer is not None:
            tokenizer.save(folder)

    @classmethod
    def load(
        cls, folder: str | Path, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> "TinyTransformer":
        """Read a folder written by `save`, or by transformers for a model of the same shape."""
        config, weights, files = hf.read(folder)
        policy = cls(config, seed=None)
        for p in policy.parameters():  # not converted: there is nothing in them yet
            p.data = torch.empty_like(p, dtype=dtype, device=device)
        policy.to(device=device, dtype=dtype)
        mine = policy.state_dict()
        if odd := [n for n, w in mine.items() if n not in weights or weights[n].shape != w.shape]:
            hf.refuse_incomplete(str(folder), odd)
        policy.load_state_dict({name: weights[name] for name in mine})
        policy.files = files
        return policy


OWN = {TinyTransformer, Trunk, Block, Attention, MLP, Linear, RMSNorm, Head, OwnHead, nn.Embedding, nn.ModuleList}
REPLACED = {"forward", "prefill", "decode"}  # a method of one module, put in the place of that of its class


def is_plain(model: nn.Module) -> bool:
    """Whether a model is our modules and nothing else: what wraps one of them, or listens, must be called."""
    if type(model) is not TinyTransformer:
        return False
    left: list[Any] = [model]
    while left:  # not `model.modules()`, which also makes their names: four times as slow
        module = left.pop()
        if type(module) not in OWN or module._forward_hooks or module._forward_pre_hooks:
            return False
        if not REPLACED.isdisjoint(module.__dict__):
            return False
        left += [m for m in module._modules.values() if m is not None]
    return True
