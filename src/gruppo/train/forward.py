"""One forward pass for all readouts of a (role, view); the head runs in chunks, recomputed in the backward pass."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gruppo.data import Batch, Inputs, Key, gather, scan
from gruppo.kernels.language import runs_on
from gruppo.kernels.logprob import logprob
from gruppo.stages.readouts import READOUTS, Chunk, Need

# Logits held at once: 32 MB in float32 on a CPU, near the size of its cache; 1 GB on a GPU, to fill its kernels.
CHUNK_NUMBERS = {"cpu": 1 << 23, "cuda": 1 << 28}


class States(NamedTuple):
    """The hidden states that a model computed, and the row of each position; positions with the same past share one.

    `index_select`, not indexing: its backward pass adds in a fixed order.
    """

    hidden_XD: Tensor
    by_layer: dict[int, Tensor]
    row_M: Tensor | None  # None: rows are positions

    def at(self, position: Tensor, layer: int = -1) -> Tensor:
        x_XD = self.by_layer.get(layer, self.hidden_XD)
        return x_XD.index_select(0, position if self.row_M is None else self.row_M[position])


def states_of(model: Any, inputs: Inputs, layers: tuple[int, ...] = ()) -> States:
    """One forward pass; prefixes that sequences share are computed once."""
    tree, row_M = inputs.tree()
    hidden_XD, by_layer = model(tree, layers)
    return States(hidden_XD, by_layer, row_M)


def serve(
    model: Any, batch: Batch, needs: Sequence[Need], *, grad: bool = False, cast: Mapping[str, Any] | None = None
) -> dict[str, Tensor]:
    """All needs of one model: {column: values}. `cast` holds the roles that needs are compared against."""
    out: dict[str, Tensor] = {}
    for view in dict.fromkeys(n.view for n in needs):
        if view not in batch.views:
            raise ValueError(f"the batch was packed without the view {view!r}: pack(views=[{view!r}]) makes it.")
        mine = list(dict.fromkeys(n for n in needs if n.view == view))
        layers = tuple(sorted({layer for n in mine if (layer := layer_of(model, n)) >= 0}))
        others = {r: _other((cast or {})[r], batch.views[view]) for r in dict.fromkeys(n.against for n in mine) if r}
        with torch.set_grad_enabled(grad):
            states = states_of(model, batch.views[view], layers)
            for n in (n for n in mine if n.at == "S"):
                out[n.column] = _pool(batch, batch.views[view], n, states, layer_of(model, n))
            for place in dict.fromkeys((n.at, n.side) for n in mine if n.at != "S"):
                here = [n for n in mine if (n.at, n.side) == place]
                read = _read(model, batch, batch.views[view], here, states, grad, others)
                read = [_said(batch, x) for x in read] if place[0] == "K" else read
                out |= {n.column: x for n, x in zip(here, read, strict=True)}
    return out


def layer_of(model: Any, n: Need) -> int:
    """The layer of a need: `layer`, or `depth` from 0 (the embedding) to 1 (the last block); -1: the final states."""
    params = dict(n.params)
    if "depth" not in params:
        return int(params.get("layer", -1))
    if "layer" in params or not 0 <= params["depth"] <= 1:
        raise ValueError(f"need {n}: a depth is a number from 0 to 1, and replaces the layer.")
    return round(params["depth"] * int(model.layers))


@torch.no_grad()
def _other(model: Any, inputs: Inputs) -> Callable[[Tensor], Tensor]:
    """The logits of a second role at given positions, one chunk at a time, without gradient."""
    states = states_of(model, inputs)
    return torch.no_grad()(lambda position_C: model.head(states.at(position_C)))


def serve_into(
    out: dict[str, Tensor],
    model: Any,
    batch: Batch,
    micro: Batch,
    needs: Sequence[Need],
    counts: bool = True,
    cast: Mapping[str, Any] | None = None,
    grad: bool = False,
) -> None:
    """`serve` for a micro-batch, without a graph; if it counts, written into the columns of the whole batch."""
    put_into(out, batch, micro, needs, serve(model, micro, needs, grad=grad, cast=cast), counts)


def put_into(
    out: dict[str, Tensor],
    batch: Batch,
    micro: Batch,
    needs: Sequence[Need],
    found: Mapping[str, Tensor],
    counts: bool = True,
) -> None:
    """What was read of a part, in the columns of the whole batch."""
    for n in needs:
        x = found[n.column].detach()
        size = len(batch.views[n.view].ids_M) if n.at == "M" else batch.size(n.at)
        full = out.setdefault(n.column, x.new_zeros((size, *x.shape[1:])))
        if counts:
            full[rows_of(micro, n)] = x


def rows_of(micro: Batch, n: Need) -> Tensor:
    """The rows of the whole batch that a need of a micro-batch belongs to."""
    row_M = micro.views[n.view].row_M
    return row_M if n.at == "M" and row_M is not None else micro.columns[f"row_{n.at}"]


def _positions(batch: Batch, inputs: Inputs, n: Need) -> tuple[Tensor, Tensor]:
    """(input position, decision or -1) of each row: a decision is predicted from the position before it."""
    rows = torch.arange(batch.size("N"), device=batch.device)
    if n.at == "M":
        every = torch.arange(len(inputs.ids_M), device=batch.device)
        return every, torch.full_like(every, -1)
    if n.at == "K":  # the first decision of the turn, or the last
        if not len(rows):
            nowhere = torch.zeros(batch.size("K"), dtype=torch.int64, device=batch.device)
            return nowhere, nowhere - 1
        how = "min" if n.side == "before" else "max"
        rows = gather(rows.double(), batch.level("N", "K"), how, fill=0.0).long()
    here = inputs.at_N[rows]
    if n.side == "after":
        return here, torch.full_like(rows, -1)
    before = inputs.parent_M[here]
    if bool((before < 0).any()):
        raise ValueError(
            "a decision is at the very start of its sequence: no state to predict it from. Begin sequences with <bos>."
        )
    return before, rows


def _said(batch: Batch, column: Tensor) -> Tensor:
    """A column of turns, with 0 for those without a token: there is no state to read."""
    said_K = gather(torch.ones_like(batch.turn_N), batch.level("N", "K"), "any")
    said_K = said_K.view(-1, *[1] * (column.dim() - 1))
    return torch.where(said_K, column, torch.zeros((), dtype=column.dtype, device=column.device))


def _read(
    model: Any,
    batch: Batch,
    inputs: Inputs,
    needs: Sequence[Need],
    states: States,
    grad: bool,
    others: Mapping[str, Callable[[Tensor], Tensor | None]],
) -> list[Tensor]:
    """The needs of one level and side; the head runs once per chunk for all of them."""
    at = needs[0].at
    position, row = _positions(batch, inputs, needs[0])
    token, heat = torch.zeros_like(row), batch.temperature_N.new_ones(len(row))
    if batch.size("N"):
        token = torch.where(row >= 0, batch.token_N[row.clamp(min=0)], token)
        heat = torch.where(row >= 0, batch.temperature_N[row.clamp(min=0)], heat)

    def chunk(hidden_CD: Tensor, a: int, b: int) -> tuple[Tensor, ...]:
        allowed = None
        if batch.allowed is not None and at == "N":
            allowed = batch.allowed.take(torch.arange(a, b, device=batch.device))
        out_CV = model.head(hidden_CD)
        own = Chunk(hidden_CD, out_CV, token[a:b], heat[a:b].to(out_CV.dtype), allowed)
        compared = {r: replace(own, other_CV=logits(position[a:b])) for r, logits in others.items()}
        own = next(iter(compared.values()), own)  # so that they share one log-softmax
        return tuple(READOUTS[n.readout].read(compared.get(n.against, own), **dict(n.params)) for n in needs)

    if _fast(model, batch, needs):
        heat_N = torch.where(heat > 0, heat, torch.ones_like(heat))
        logp, entropy = logprob(states.at(position), model.output.weight, token, heat_N)
        return [logp if n.readout == "logp" else entropy for n in needs]
    size = max(1, CHUNK_NUMBERS.get(batch.device.type, 1 << 23) // max(int(model.vocab), 1))
    if len(position) <= size:
        return list(chunk(states.at(position), 0, len(position)))
    parts: list[tuple[Tensor, ...]] = []
    for a in range(0, len(position), size):
        b = min(a + size, len(position))
        piece = states.at(position[a:b])
        parts.append(checkpoint(chunk, piece, a, b, use_reentrant=False) if grad else chunk(piece, a, b))  # type: ignore[arg-type]
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def _fast(model: Any, batch: Batch, needs: Sequence[Need]) -> bool:
    """Whether one kernel gives all of this: log-probabilities and entropies of whole distributions, on a GPU."""
    plain = all(n.readout in ("logp", "entropy") and not n.params and not n.against for n in needs)
    ready = getattr(model, "plain_head", False) and model.output.weight.is_cuda and runs_on(model.output.weight)
    return plain and ready and batch.allowed is None


def _pool(batch: Batch, inputs: Inputs, n: Need, states: States, layer: int) -> Tensor:
    """The mean over the last decisions of each sequence; with prompt=1, over the last positions before the first."""
    params = dict(n.params)
    hidden_MD = states.at(torch.arange(len(inputs.ids_M), device=batch.device), layer)
    sequences = Key(inputs.seq_M, batch.size("S"))
    decided = torch.zeros_like(inputs.seq_M, dtype=torch.bool)
    decided[inputs.at_N] = True
    if params.get("prompt"):
        seen = torch.cumsum(decided.long(), 0)
        before_S = gather((seen - decided.long()).double(), sequences, "min").long()
        decided = (seen - before_S[inputs.seq_M]) == 0
    from_end = scan(decided.double(), 1.0, inputs.seq_M)
    return gather(hidden_MD, sequences, "mean", where=decided & (from_end <= params.get("last", 10)))
