"""Prefill and decoding of our transformer on a CPU, bit for bit as the model computes them, in fewer operations.

A small model spends more time between its products than in them. So functions are called instead of modules, views of
the cache are made for all layers at once, and norms leave out what only other kinds of numbers need. To stack the
weights of q, k and v, or of gate and up, saves nothing here: the products take as long, and change in their last bits.
"""

from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from gruppo.data import Inputs
from gruppo.kernels.rms import KINDS, rms_norm_plain
from gruppo.kernels.rope import turn_plain
from gruppo.kernels.scores import scores
from gruppo.policies.cache import Cache, Step
from gruppo.policies.layout import layout_of
from gruppo.policies.tiny import TinyTransformer, is_plain

Matrix = tuple[Tensor, Tensor | None]  # a weight, transposed, and its bias


def product(x_XD: Tensor, by: Matrix) -> Tensor:
    """What `F.linear` does, without the three operations that lead to it."""
    weight, bias = by
    return torch.mm(x_XD, weight) if bias is None else torch.addmm(bias, x_XD, weight)


class Layer(NamedTuple):
    """The weights of one block."""

    norm_1: Tensor
    q: Matrix
    k: Matrix
    v: Matrix
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Matrix
    norm_2: Tensor
    gate: Matrix
    up: Matrix
    down: Matrix

    @classmethod
    def of(cls, block: Any) -> "Layer":
        a, m = block.self_attn, block.mlp
        linear = (a.q_proj, a.k_proj, a.v_proj, a.o_proj, m.gate_proj, m.up_proj, m.down_proj)
        q, k, v, o, gate, up, down = ((x.weight.detach().t(), x.bias) for x in linear)
        q_norm, k_norm = (None if x is None else x.weight for x in (a.q_norm, a.k_norm))
        norm_1, norm_2 = block.input_layernorm.weight, block.post_attention_layernorm.weight
        return cls(norm_1, q, k, v, q_norm, k_norm, o, norm_2, gate, up, down)


class Plain:
    """The weights of a model, as sampling on a CPU reads them."""

    def __init__(self, model: TinyTransformer) -> None:
        c = model.config
        self.context, self.dim, self.eps, self.shared = c.context, c.head_dim, c.norm_eps, c.heads != c.kv_heads
        self.layers = [Layer.of(b) for b in model.model.layers]
        self.embed, self.norm, self.output = (
            model.model.embed_tokens.weight,
            model.model.norm.weight,
            model.output.weight,
        )
        self.cos, self.sin = cast(Tensor, model.rope_cos), cast(Tensor, model.rope_sin)

    def head(self, hidden_XD: Tensor) -> Tensor:
        return scores(hidden_XD, self.output)

    def decode(self, ids_B: Tensor, pos_B: Tensor, cache: Cache, span: int | None = None) -> Tensor:
        step = Step.of(ids_B, pos_B, cache, span)
        mask, rows = step.mask(self.embed.dtype), len(ids_B)
        # Views for all layers at once, keys and values in turn: the cells of the cache, and what attention sees.
        cells = cache.kv.flatten(2, 3).flatten(0, 1).unbind(0)
        seen = cache.kv[:, :, :rows, : step.span].unflatten(-1, (-1, self.dim)).transpose(3, 4).flatten(0, 1).unbind(0)
        x_BD, rotary = F.embedding(ids_B, self.embed), self._rotary(pos_B)
        for i, layer in enumerate(self.layers):
            q_BHd, k_BHd, v_BD = self._qkv(layer, x_BD, *rotary)
            cells[2 * i].index_copy_(0, step.cell_M, k_BHd.flatten(1))
            cells[2 * i + 1].index_copy_(0, step.cell_M, v_BD)
            y_BH1d = self._sdpa(q_BHd[:, :, None], seen[2 * i], seen[2 * i + 1], mask)
            x_BD = self._rest(layer, x_BD, y_BH1d.flatten(1))
        return rms_norm_plain(x_BD, self.norm, self.eps)

    def prefill(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Hidden states (M, dim), and the keys and values (layers, 2, M, width) for a cache."""
        layout = layout_of(inputs, self.context, self.embed.dtype)
        x_MD, rotary, kept = F.embedding(inputs.ids_M, self.embed), self._rotary(inputs.pos_M), list[Tensor]()
        for layer in self.layers:
            q_MHd, k_MHd, v_MD = self._qkv(layer, x_MD, *rotary)
            kept += [k_MHd.flatten(1), v_MD]
            v_MHd = v_MD.unflatten(-1, (-1, self.dim))
            lines = zip(layout.lines(q_MHd), layout.paths(k_MHd), layout.paths(v_MHd), layout.masks, strict=True)
            y = [self._sdpa(*(x.transpose(1, 2) for x in line), mask).transpose(1, 2) for *line, mask in lines]
            x_MD = self._rest(layer, x_MD, (layout.positions(y) if y else q_MHd).flatten(1))
        return rms_norm_plain(x_MD, self.norm, self.eps), torch.stack(kept).unflatten(0, (-1, 2))

    def _rotary(self, pos_X: Tensor) -> tuple[Tensor, Tensor]:
        return self.cos.index_select(0, pos_X)[:, None], self.sin.index_select(0, pos_X)[:, None]

    def _qkv(self, layer: Layer, x_XD: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n_XD = rms_norm_plain(x_XD, layer.norm_1, self.eps)
        q_XHd, k_XHd = (product(n_XD, w).view(len(x_XD), -1, self.dim) for w in (layer.q, layer.k))
        if layer.q_norm is not None and layer.k_norm is not None:
            q_XHd, k_XHd = rms_norm_plain(q_XHd, layer.q_norm, self.eps), rms_norm_plain(k_XHd, layer.k_norm, self.eps)
        return turn_plain(q_XHd, cos, sin), turn_plain(k_XHd, cos, sin), product(n_XD, layer.v)

    def _sdpa(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=self.shared)

    def _rest(self, layer: Layer, x_XD: Tensor, y_XD: Tensor) -> Tensor:
        x_XD = x_XD + product(y_XD, layer.o)
        n_XD = rms_norm_plain(x_XD, layer.norm_2, self.eps)
        return x_XD + product(F.silu(product(n_XD, layer.gate)).mul_(product(n_XD, layer.up)), layer.down)


def plain_of(model: Any) -> Plain | None:
    """None for a model that is more than our modules on a CPU."""
    known = is_plain(model) and model.device.type == "cpu" and model.output.weight.dtype in KINDS
    return Plain(model) if known else None
