"""Prefills by the stacked weights of a decoder: half as many kernels as the model has, and a graph for small ones."""

from collections import Counter
from dataclasses import dataclass
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor

from gruppo.data import Inputs
from gruppo.engines.graphs import Decoder, captured
from gruppo.kernels.language import power_of_two
from gruppo.kernels.norm import add_norm
from gruppo.kernels.rope import turn
from gruppo.kernels.swiglu import swiglu
from gruppo.kernels.varlen import varlen
from gruppo.policies.varlen import Varlen, varlen_of

SMALL = 1024  # tokens up to which a prefill is bound by the launches of its kernels
STEP = 64  # sizes of small ones are multiples of it
OFTEN = 3  # times that a size is met before its graph is recorded


@dataclass(frozen=True)
class Pass:
    """The inputs of a prefill, and what comes out of it: the last hidden states, and keys and values."""

    ids_M: Tensor
    pos_M: Tensor
    seen: Varlen
    hidden_MD: Tensor
    kv_M: Tensor  # (layers, 2, M, kv_heads, dim)


class Prefiller:
    """What `Transformer.prefill` does, for the model of a decoder.

    A small prefill is always filled up to one of a few sizes, with or without a graph, so that its bits do not depend
    on what was met before.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = ref(decoder)  # it must be freed before a larger one is made
        self.met: Counter[tuple[int, int]] = Counter()
        self.passes: dict[tuple[int, int], Pass] = {}
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}

    def of(self, decoder: Decoder) -> bool:
        return self._decoder() is decoder

    @property
    def decoder(self) -> Decoder:
        decoder = self._decoder()
        assert decoder is not None
        return decoder

    def __call__(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        seen, size = varlen_of(inputs, self.decoder.model.context), len(inputs.ids_M)
        if size > SMALL or seen.key_C is not None:
            done = self._made(inputs.ids_M, inputs.pos_M, seen)
            self._go(done)
            return done.hidden_MD, done.kv_M.flatten(3)
        done = self._small(inputs, seen)
        return done.hidden_MD[:size].clone(), done.kv_M[:, :, :size].flatten(3).clone()

    def _made(self, ids_M: Tensor, pos_M: Tensor, seen: Varlen) -> Pass:
        d, size = self.decoder, len(ids_M)
        kv_M = d.embed.new_empty(len(d.layers), 2, size, d.heads.kv_heads, d.heads.dim)
        return Pass(ids_M, pos_M, seen, d.embed.new_empty(size, d.model.dim), kv_M)

    def _small(self, inputs: Inputs, seen: Varlen) -> Pass:
        """Filled up with one more line of token 0, and with empty lines."""
        size, lines = len(inputs.ids_M), len(seen.starts) - 1
        shape = -(-size // STEP) * STEP, power_of_two(lines + 1)
        if shape not in self.passes:
            ids_M, pos_M = (inputs.ids_M.new_zeros(shape[0]) for _ in range(2))
            starts = seen.starts.new_zeros(shape[1] + 1)
            self.passes[shape] = self._made(ids_M, pos_M, Varlen(starts, starts, shape[0], shape[0], None, None, None))
        done = self.passes[shape]
        done.ids_M[:size], done.pos_M[:size] = inputs.ids_M, inputs.pos_M
        done.ids_M[size:], done.pos_M[size:] = 0, 0
        done.seen.starts[: lines + 1], done.seen.starts[lines + 1 :] = seen.starts, shape[0]
        self.met[shape] += 1
        if self.decoder.memory is None or self.met[shape] < OFTEN:
            self._go(done)
        else:
            if shape not in self.graphs:
                self.graphs[shape] = captured(lambda: self._go(done), self.decoder.memory)
            self.graphs[shape].replay()
        return done

    def _go(self, p: Pass) -> None:
        d, h, size, seen = self.decoder, self.decoder.heads, len(p.ids_M), p.seen
        cos, sin = (t[p.pos_M][:, None] for t in (d.model.rope_cos, d.model.rope_sin))
        x_MD, y_MD = F.embedding(p.ids_M, d.embed), None
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
