"""One decoding step of our transformer on a GPU: fused weights, few kernels, one CUDA graph for each number of rows."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gruppo.engines.pages import Pool, pages_for
from gruppo.kernels.attention import Heads, Rope, attend, shares
from gruppo.kernels.draw import advance, draw_token
from gruppo.kernels.norm import add_norm
from gruppo.kernels.record import recorded
from gruppo.kernels.scores import scores
from gruppo.kernels.swiglu import swiglu
from gruppo.kernels.thin import add_linear, fits, norm_linear, norm_swiglu
from gruppo.policies.base import weights_of
from gruppo.policies.lora import merged_weight


class Stack:
    """Weights and biases of several linear layers as one matrix.

    It is stored once: the layers become views of it. Only layers with an adapter are merged into a copy, again whenever
    sampling begins.
    """

    def __init__(self, modules: list[Any]) -> None:
        self.modules, self.merged = modules, any(hasattr(m, "base_layer") for m in modules)
        biases = [m.bias for m in modules if m.bias is not None]
        self.bias = _stacked(biases) if biases else None
        self.weight = self._merge() if self.merged else _stacked([m.weight for m in modules])

    @torch.no_grad()
    def _merge(self) -> Tensor:
        return torch.cat([merged_weight(m) for m in self.modules])

    def refresh(self) -> None:
        if self.merged:
            self.weight.copy_(self._merge())

    def __call__(self, x_BD: Tensor) -> Tensor:
        return F.linear(x_BD, self.weight, self.bias)


@torch.no_grad()
def _stacked(parts: list[Any]) -> Tensor:
    if len(parts) == 1:
        return parts[0].data
    first, size = parts[0].data, 0
    for p in parts:  # already one after another in one storage?
        adjacent = p.data_ptr() == first.data_ptr() + size * first.element_size()
        if not (adjacent and p.data.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()):
            break
        size += p.numel()
    else:
        rows = sum(len(p) for p in parts)
        return first.as_strided((rows, *first.shape[1:]), first.stride(), first.storage_offset())
    whole = torch.cat([p.data for p in parts])
    for p, piece in zip(parts, whole.split([len(p) for p in parts]), strict=True):
        p.data = piece
    return whole


@dataclass(frozen=True)
class Layer:
    """The weights of one block, as decoding uses them."""

    norm_1: Tensor
    qkv: Stack
    qk_norms: tuple[Tensor, Tensor] | None
    o: Stack
    norm_2: Tensor
    gate_up: Stack
    down: Stack

    @classmethod
    def of(cls, block: Any) -> "Layer":
        a, m = block.self_attn, block.mlp
        norms = getattr(a, "q_norm", None), getattr(a, "k_norm", None)
        return cls(
            block.input_layernorm.weight.data,
            Stack([a.q_proj, a.k_proj, a.v_proj]),
            None if norms[0] is None else (norms[0].weight.data, norms[1].weight.data),  # type: ignore[union-attr]
            Stack([a.o_proj]),
            block.post_attention_layernorm.weight.data,
            Stack([m.gate_proj, m.up_proj]),
            Stack([m.down_proj]),
        )


class Decoder:
    """Decodes the first n of at most `rows` rows. Its state is on the GPU; a graph reads and writes it in place.

    state   token and position of what goes in next, and the key of the draw; `heat` is its temperature
    table   the pages of each row
    out     what was drawn since `count` was 0: at most `window` ids, their log-probabilities, and lost draws
    """

    def __init__(self, model: Any, pool: Pool, rows: int, window: int) -> None:
        self.model, self.pool, self.rows = model, pool, rows
        config, device = model.config, model.device
        dim = pool.kv.shape[-1]
        self.heads = Heads(config.heads, pool.kv.shape[3], dim, config.norm_eps)
        self.rope = Rope(model.rope_cos.float(), model.rope_sin.float())
        self.layers = [Layer.of(b) for b in model.model.layers]
        self.norm, self.eps = model.model.norm.weight.data, config.norm_eps
        self.embed, self.head = model.model.embed_tokens.weight.data, model.output.weight.data
        self.state = torch.zeros(3, rows, dtype=torch.int64, device=device)
        self.count = torch.zeros(rows, dtype=torch.int64, device=device)
        self.heat = torch.ones(rows, device=device)
        # One page more than a row can have: it may go on for some tokens after its end.
        self.table = torch.zeros(rows, pages_for(model.context) + 1, dtype=torch.int32, device=device)
        # All in one table, which takes one copy to the host; float64 holds ids and log-probabilities exactly.
        self.out = torch.zeros(rows, 2 * window + 1, dtype=torch.float64, device=device)
        self.hidden_RD = torch.zeros(rows, model.dim, dtype=self.embed.dtype, device=device)  # of a step without a draw
        self.graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self.memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

        self.shares_E = shares(self.state[1], self.heads.kv_heads)  # of the programs of attention, in this step
        self._weights = self._where()

    def _where(self) -> tuple[int, ...]:
        return tuple(p.data_ptr() for p in weights_of(self.model))

    @property
    def valid(self) -> bool:
        """Whether the weights are still where the graphs read them."""
        return self._where() == self._weights

    def refresh(self) -> None:
        """Merge adapters again: their weights may have changed, also within a version."""
        for layer in self.layers:
            for stack in (layer.qkv, layer.o, layer.gate_up, layer.down):
                stack.refresh()

    def forward(self, n: int) -> Tensor:
        """The last hidden states after the next token of the first n rows."""
        self.shares_E = shares(self.state[1, :n], self.heads.kv_heads)
        x_BD, y_BD = F.embedding(self.state[0, :n], self.embed), None
        if fits(x_BD) and all(layer.gate_up.bias is None for layer in self.layers):
            return self._few(x_BD)
        for i, layer in enumerate(self.layers):
            x_BD, h_BD = add_norm(x_BD, y_BD, layer.norm_1, self.eps)
            y_BD = layer.o(self._attend(i, layer.qkv(h_BD)))
            x_BD, h_BD = add_norm(x_BD, y_BD, layer.norm_2, self.eps)
            y_BD = layer.down(swiglu(layer.gate_up(h_BD)))
        return add_norm(x_BD, y_BD, self.norm, self.eps)[1]

    def _few(self, x_BD: Tensor) -> Tensor:
        """The same for few rows: the start of kernels takes most of the time, so there are five in a block."""
        for i, layer in enumerate(self.layers):
            qkv_BX = norm_linear(x_BD, layer.norm_1, self.eps, layer.qkv.weight, layer.qkv.bias)
            add_linear(x_BD, self._attend(i, qkv_BX), layer.o.weight, layer.o.bias)
            act_BF = norm_swiglu(x_BD, layer.norm_2, self.eps, layer.gate_up.weight)
            add_linear(x_BD, act_BF, layer.down.weight, layer.down.bias)
        return add_norm(x_BD, None, self.norm, self.eps)[1]

    def _attend(self, i: int, qkv_BX: Tensor) -> Tensor:
        n, (keys, values) = len(qkv_BX), self.pool.kv[i]
        place = (self.state[1, :n], self.table[:n], keys, values)
        return attend(qkv_BX, self.heads, self.rope, self.layers[i].qk_norms, *place, self.shares_E)

    def drawn(self, n: int) -> None:
        """A step with its draw; the token drawn goes in next."""
        _, pos, key = self.state[:, :n]
        drawn = draw_token(scores(self.forward(n), self.head), self.heat[:n], key, pos + 1)
        advance(*drawn, self.state, self.count, self.out, self.model.context - 1)

    def step(self, live: int, draw: bool) -> Tensor:
        """A step of the live rows, by the graph of the next larger number. Without a draw: the hidden states."""
        n = bucket(live, self.rows)
        if self.memory is None:
            self._once(n, draw)
        else:
            if (n, draw) not in self.graphs:
                self.graphs[n, draw] = self._capture(n, draw)
            self.graphs[n, draw].replay()
        return self.hidden_RD[:live]

    def _capture(self, n: int, draw: bool) -> torch.cuda.CUDAGraph:
        kept = [x.clone() for x in (self.state, self.count, self.out)]
        graph = recorded([lambda: self._once(n, draw)], self.memory, first=True)[0]
        for x, before in zip((self.state, self.count, self.out), kept, strict=True):
            x.copy_(before)
        return graph

    def _once(self, n: int, draw: bool) -> None:
        if draw:
            self.drawn(n)
        else:
            self.hidden_RD[:n] = self.forward(n)


def bucket(live: int, rows: int) -> int:
    """The number of rows that are computed for so many live ones: few numbers, little waste."""
    step = 1 if live <= 2 else 8 if live <= 64 else 32
    return min(-(-live // step) * step, rows)
