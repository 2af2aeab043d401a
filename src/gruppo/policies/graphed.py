"""Small training passes of our transformer on a GPU as CUDA graphs: their time is the launch of their kernels.

A pass is filled up to one of a few shapes, with one more line of queries and keys that nobody reads. When a shape is
met for the third time its blocks are recorded, forward and backward, and replayed from then on.
"""

from collections import Counter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from gruppo.kernels.language import power_of_two
from gruppo.kernels.record import recorded
from gruppo.policies.base import weights_of
from gruppo.policies.memory import free_memory, out_of_memory
from gruppo.policies.varlen import Varlen

SMALL = 2048  # tokens; what is larger is bound by its products. At 0.5 B these keep some 3 GB of activations
LARGEST = 2_000_000_000  # parameters, likewise; their gradients are kept once more
OFTEN = 3  # times that a shape is met before it is recorded, which takes as long as some steps
MOST = 16  # shapes of a model that are recorded


class Shape(NamedTuple):
    tokens: int
    keys: int
    lines: int
    reach: int  # no line or path is longer


def shape_of(seen: Varlen, tokens: int) -> Shape:
    """The shape that a pass is filled up to: at least one more token, and at least one key for each."""
    size = rounded(tokens + 1)
    more, keys = size - tokens, tokens if seen.key_C is None else len(seen.key_C)
    wide = rounded(keys + more)
    # The work hardly depends on the last two; powers of two give few shapes.
    reach = max(seen.longest, more, seen.farthest, wide - keys)
    return Shape(size, wide, power_of_two(len(seen.starts)), max(power_of_two(reach), 256))


def rounded(n: int) -> int:
    """At most a quarter larger, and a multiple of 128: recording a shape takes as long as some steps."""
    step = max(power_of_two(n) // 8, 128)
    return -(-n // step) * step


class Filled:
    """The inputs of a pass in tensors that stay where they are."""

    def __init__(self, shape: Shape, like_MD: Tensor) -> None:
        def ints(n: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(n, dtype=dtype, device=like_MD.device)

        self.shape = shape
        self.x_MD = like_MD.new_zeros(shape.tokens, like_MD.shape[1])
        self.pos_M = ints(shape.tokens)
        starts, ends = (ints(shape.lines + 1, torch.int32) for _ in range(2))
        # The backward pass of attention refuses a line that is longer than all of them together.
        longest, farthest = min(shape.reach, shape.tokens), min(shape.reach, shape.keys)
        self.seen = Varlen(starts, ends, longest, farthest, ints(shape.keys), None, None)

    @torch.no_grad()
    def fill(self, x_MD: Tensor, pos_M: Tensor, seen: Varlen) -> None:
        size, lines = len(x_MD), len(seen.starts)
        self.x_MD[:size], self.pos_M[:size] = x_MD, pos_M
        self.x_MD[size:], self.pos_M[size:] = 0, 0
        self.seen.starts[:lines], self.seen.starts[lines:] = seen.starts, self.shape.tokens
        self.seen.ends[:lines], self.seen.ends[lines:] = seen.ends, self.shape.keys
        key_C, mine = self.seen.key_C, seen.key_C
        assert key_C is not None
        keys = size if mine is None else len(mine)
        key_C[:keys] = torch.arange(size, device=key_C.device) if mine is None else mine
        key_C[keys:] = size  # a token that nobody reads


def through(model: Any, x_MD: Tensor, pos_M: Tensor, seen: Varlen) -> Tensor:
    """All blocks and the last norm."""
    rotary = model._rotary(pos_M)
    for layer, block in enumerate(model.model.layers):
        x_MD = block(x_MD, rotary, seen, layer)
    return model.model.norm(x_MD)


class Recorded:
    """A pass of one shape: two graphs, which read and write the tensors that are kept here."""

    def __init__(self, model: Any, filled: Filled, params: list[Tensor], grads: list[Tensor], memory: Any) -> None:
        self.filled, self.grads = filled, grads
        x_MD = filled.x_MD.requires_grad_()
        self.to_y_MD = self.to_x_MD = self.y_MD = torch.zeros_like(x_MD)

        def forward() -> None:
            self.y_MD = through(model, x_MD, filled.pos_M, filled.seen)

        def backward() -> None:
            self.to_x_MD, *found = torch.autograd.grad(self.y_MD, [x_MD, *params], self.to_y_MD)
            torch._foreach_copy_(grads, found)  # type: ignore[attr-defined]

        self.forward, self.backward = recorded([forward, backward], memory)
        # The states in between belong to the graphs, and their memory to those of any shape.
        self.y_MD = self.y_MD.detach()


class _Open:
    """A pass whose gradient may still be asked for."""


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, graphs: "Graphs", run: Recorded, x_MD: Tensor, *params: Tensor) -> Tensor:  # type: ignore[override]
        ctx.run, ctx.size, ctx.open = run, len(x_MD), _Open()
        graphs.open = ref(ctx.open)
        run.forward.replay()
        return run.y_MD[: ctx.size].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, to_y_MD: Tensor) -> Any:  # type: ignore[override]
        if ctx.open is None:
            raise RuntimeError("a recorded pass has one gradient: what it needs is gone after the first.")
        run, n, ctx.open = ctx.run, ctx.size, None
        run.to_y_MD[:n], run.to_y_MD[n:] = to_y_MD, 0
        run.backward.replay()
        # New tensors, in few kernels: those of the graph are written again by the next pass.
        copies = torch._foreach_mul(run.grads, 1.0)  # type: ignore[attr-defined]
        return None, None, run.to_x_MD[:n].clone(), *copies


class Graphs:
    """The recorded passes of a model. Their memory is shared, so only one of them is open at a time."""

    def __init__(self, model: Any) -> None:
        trained = [*model.model.layers.parameters(), *model.model.norm.parameters()]
        self.params = [p for p in trained if p.requires_grad]
        self.where = _where(model)
        self.grads: list[Tensor] = []  # made when the first pass is recorded
        self.memory: Any = None
        self.met: Counter[Shape] = Counter()
        self.runs: dict[Shape, Recorded] = {}
        self.most = MOST if sum(p.numel() for p in self.params) <= LARGEST else 0  # fewer where memory has run out
        self.open: Any = lambda: None

    def __call__(self, model: Any, x_MD: Tensor, pos_M: Tensor, seen: Varlen) -> Tensor | None:
        shape = shape_of(seen, len(x_MD))
        self.met[shape] += 1
        if self.open() is not None or self.met[shape] < OFTEN:
            return None
        if shape not in self.runs:
            if len(self.runs) >= self.most:
                return None
            try:
                self.runs[shape] = self._recorded(model, shape, x_MD, pos_M, seen)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                self.most = len(self.runs)
        if shape not in self.runs:  # and the traceback, which holds tensors, is gone
            free_memory()
            return None
        run = self.runs[shape]
        run.filled.fill(x_MD, pos_M, seen)
        return _Replayed.apply(self, run, x_MD, *self.params)  # type: ignore[no-any-return]

    def _recorded(self, model: Any, shape: Shape, x_MD: Tensor, pos_M: Tensor, seen: Varlen) -> Recorded:
        if not self.grads:
            self.memory = torch.cuda.graph_pool_handle()
            self.grads = [torch.zeros_like(p) for p in self.params]
        filled = Filled(shape, x_MD)
        filled.fill(x_MD, pos_M, seen)
        return Recorded(model, filled, self.params, self.grads, self.memory)


_GRAPHS: WeakKeyDictionary[Any, Graphs] = WeakKeyDictionary()  # not in the model, which is copied


def _where(model: Any) -> tuple[tuple[int, bool], ...]:
    return tuple((p.data_ptr(), p.requires_grad) for p in weights_of(model))


def replayed(model: Any, x_MD: Tensor, pos_M: Tensor, seen: Varlen) -> Tensor | None:
    """What `through` gives, with its gradient; None if it has to be computed.

    In a run that must be exact nothing is recorded: what was met before would decide over the last bits.
    """
    fits = 0 < len(x_MD) <= SMALL and x_MD.is_cuda and x_MD.requires_grad
    if not fits or torch.are_deterministic_algorithms_enabled():
        return None
    if model not in _GRAPHS or _GRAPHS[model].where != _where(model):
        _GRAPHS.pop(model, None)
        _GRAPHS[model] = Graphs(model)
    return _GRAPHS[model](model, x_MD, pos_M, seen)
