"""Prefills by the stacked weights of a decoder: half as many kernels as the model has, and a graph for small ones."""

from collections import Counter
from dataclasses import dataclass
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor

from gruppo.data import Inputs
from gruppo.engines.graphs import Decoder
from gruppo.kernels.norm import add_norm
from gruppo.kernels.record import recorded
from gruppo.kernels.rope import turn
from gruppo.kernels.swiglu import swiglu
from gruppo.kernels.varlen import varlen
from gruppo.policies.graphed import Filled, Shape, shape_of
from gruppo.policies.varlen import Varlen, varlen_of

SMALL = 8192  # tokens up to which the launches of its kernels cost a prefill time
KEPT = 32768  # tokens of all shapes that are kept for graphs; at 0.5 B some 16 KB each
OFTEN = 3  # times that a size is met before its graph is recorded


@dataclass(frozen=True)
class Pass:
    """The inputs of a prefill, and what comes out of it: the last hidden states, and keys and values."""

    x_MD: Tensor
    pos_M: Tensor
    seen: Varlen
    hidden_MD: Tensor
    kv_M: Tensor  # (layers, 2, M, kv_heads, dim)


class Prefiller:
    """What `Transformer.prefill` does, for the model of a decoder.

    A small prefill is always filled up to one of a few shapes, with or without a graph, so that what it gives hardly
    depends on what was met before. In a run that must be exact there are no graphs: they may differ in the last bits.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = ref(decoder)  # it must be freed before a larger one is made
        self.met: Counter[Shape] = Counter()
        self.passes: dict[Shape, tuple[Filled, Pass]] = {}  # the one that was used last stands last
        self.graphs: dict[Shape, torch.cuda.CUDAGraph] = {}

    def of(self, decoder: Decoder) -> bool:
        return self._decoder() is decoder

    @property
    def decoder(self) -> Decoder:
        decoder = self._decoder()
        assert decoder is not None
        return decoder

    def __call__(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        seen, size = varlen_of(inputs, self.decoder.model.context), len(inputs.ids_M)
        x_MD = F.embedding(inputs.ids_M, self.decoder.embed)
        if size > SMALL:
            done = self._made(x_MD, inputs.pos_M, seen)
            self._go(done)
            return done.hidden_MD, done.kv_M.flatten(3)
        done = self._small(x_MD, inputs.pos_M, seen)
        return done.hidden_MD[:size].clone(), done.kv_M[:, :, :size].flatten(3).clone()

    def _made(self, x_MD: Tensor, pos_M: Tensor, seen: Varlen) -> Pass:
        d, size = self.decoder, len(x_MD)
        kv_M = x_MD.new_empty(len(d.layers), 2, size, d.heads.kv_heads, d.heads.dim)
        return Pass(x_MD, pos_M, seen, torch.empty_like(x_MD), kv_M)

    def _small(self, x_MD: Tensor, pos_M: Tensor, seen: Varlen) -> Pass:
        shape = shape_of(seen, len(x_MD))
        filled, done = self.passes.pop(shape, (None, None))
        if filled is None or done is None:
            self._forget(shape.tokens)
            filled = Filled(shape, x_MD)
            done = self._made(filled.x_MD, filled.pos_M, filled.seen)
        self.passes[shape] = filled, done
        filled.fill(x_MD, pos_M, seen)
        self.met[shape] += 1
        free = self.decoder.memory is not None and not torch.are_deterministic_algorithms_enabled()
        if not free or self.met[shape] < OFTEN:
            self._go(done)
        else:
            if shape not in self.graphs:
                self.graphs[shape] = recorded([lambda: self._go(done)], self.decoder.memory)[0]
            self.graphs[shape].replay()
        return done

    def _forget(self, tokens: int) -> None:
        """Drop what was not used for the longest time, until there is room for so many tokens."""
        while self.passes and sum(shape.tokens for shape in self.passes) + tokens > KEPT:
            oldest = next(iter(self.passes))
            del self.passes[oldest], self.met[oldest]
            self.graphs.pop(oldest, None)

    def _go(self, p: Pass) -> None:
        d, h, size, seen = self.decoder, self.decoder.heads, len(p.x_MD), p.seen
        cos, sin = (t[p.pos_M][:, None] for t in (d.model.rope_cos, d.model.rope_sin))
        x_MD, y_MD = p.x_MD, None
        for layer, kv in zip(d.layers, p.kv_M, strict=True):
            x_MD, h_MD = add_norm(x_MD, y_MD, layer.norm_1, d.eps)
            qkv = layer.qkv(h_MD).view(size, -1, h.dim)
            qk, kv[1] = qkv[:, : -h.kv_heads], qkv[:, -h.kv_heads :]
            if layer.qk_norms is not None:
                parts = zip(qk.split([h.heads, h.kv_heads], 1), layer.qk_norms, strict=True)
                qk = torch.cat([F.rms_norm(x, w.shape, w, d.eps) for x, w in parts], 1)
            qk = turn(qk, cos, sin)
            kv[0] = qk[:, h.heads :]
            k, v = kv if seen.key_C is None else kv.index_select(1, seen.key_C)
            span = (seen.starts, seen.ends, seen.longest, seen.farthest)
            y_MD = layer.o(varlen(qk[:, : h.heads], k, v, *span).flatten(1))
            x_MD, h_MD = add_norm(x_MD, y_MD, layer.norm_2, d.eps)
            y_MD = layer.down(swiglu(layer.gate_up(h_MD)))
        p.hidden_MD.copy_(add_norm(x_MD, y_MD, d.norm, d.eps)[1])
