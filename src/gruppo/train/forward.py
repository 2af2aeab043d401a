"""One forward for all readouts of a (role, view); the head runs in chunks and is recomputed in backward."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gruppo.data import Batch, Inputs, Key, gather, scan
from gruppo.stages.readouts import READOUTS, Chunk, Need

CHUNK_NUMBERS = 1 << 23  # scores held at once: 32 MB in float32


def serve(model: Any, batch: Batch, needs: Sequence[Need], *, grad: bool = False) -> dict[str, Tensor]:
    """Read every need of one model from the batch: {column: values}."""
    out: dict[str, Tensor] = {}
    for view in dict.fromkeys(n.view for n in needs):
        if view not in batch.views:
            raise ValueError(f"the batch was packed without the view {view!r}: pack(views=[{view!r}]) makes it.")
        mine = [n for n in needs if n.view == view]
        layers = tuple(sorted({int(v) for n in mine for k, v in n.params if k == "layer" and v >= 0}))
        with torch.set_grad_enabled(grad):
            hidden_MD, by_layer = model.hidden(batch.views[view], layers)
            for n in mine:
                out[n.column] = _read(model, batch, batch.views[view], n, hidden_MD, by_layer, grad)
    return out


def serve_all(model: Any, batch: Batch, needs: Sequence[Need], micros: Iterable[Batch]) -> dict[str, Tensor]:
    """`serve` without gradient over micro-batches, rows put back in their places."""
    out: dict[str, Tensor] = {}
    for micro in micros:
        part = serve(model, micro, needs)
        for n in needs:
            x = part[n.column]
            size = len(batch.views[n.view].ids_M) if n.at == "M" else batch.size(n.at)
            full = out.setdefault(n.column, x.new_zeros((size, *x.shape[1:])))
            full[places_of(micro, n)] = x
    return out


def places_of(micro: Batch, n: Need) -> Tensor:
    """Where the rows of a need stand in the whole batch."""
    row_M = micro.views[n.view].row_M
    return row_M if n.at == "M" and row_M is not None else micro.columns[f"row_{n.at}"]


def _positions(batch: Batch, inputs: Inputs, at: str) -> tuple[Tensor, Tensor]:
    """(input position to read, decision row or -1): the state before a decision is the position before it."""
    rows = torch.arange(batch.size("N"), device=batch.device)
    if at == "M":
        every = torch.arange(len(inputs.ids_M), device=batch.device)
        return every, torch.full_like(every, -1)
    if at == "K":  # before the first decision of the turn
        first = gather(rows.double(), batch.level("N", "K"), "min", fill=0.0).long()
        rows = first
    before = inputs.parent_M[inputs.at_N[rows]]
    if bool((before < 0).any()):
        raise ValueError(
            "a decision stands at the very start of its sequence: no state to predict it from. Begin "
            "sequences with <bos>."
        )
    return before, rows


def _read(
    model: Any, batch: Batch, inputs: Inputs, n: Need, hidden_MD: Tensor, by_layer: dict[int, Tensor], grad: bool
) -> Tensor:
    if n.at == "S":
        return _pool(batch, inputs, n, hidden_MD, by_layer)
    position, row = _positions(batch, inputs, n.at)
    params, read = dict(n.params), READOUTS[n.readout].read
    token = torch.where(row >= 0, batch.token_N[row.clamp(min=0)], torch.zeros_like(row))
    heat = torch.where(row >= 0, batch.temperature_N[row.clamp(min=0)], torch.ones_like(batch.temperature_N[:1]))

    def chunk(hidden_CD: Tensor, a: int, b: int) -> Tensor:
        allowed = None
        if batch.allowed is not None and n.at == "N":
            allowed = batch.allowed.take(torch.arange(a, b, device=batch.device))
        scores_CV = model.head(hidden_CD)
        return read(Chunk(hidden_CD, scores_CV, token[a:b], heat[a:b].to(scores_CV.dtype), allowed), **params)

    size = max(1, CHUNK_NUMBERS // max(int(model.vocab), 1))
    if len(position) <= size:
        return chunk(hidden_MD[position], 0, len(position))
    parts: list[Tensor] = []
    for a in range(0, len(position), size):
        b = min(a + size, len(position))
        piece = hidden_MD[position[a:b]]
        parts.append(checkpoint(chunk, piece, a, b, use_reentrant=False) if grad else chunk(piece, a, b))  # type: ignore[arg-type]
    return torch.cat(parts)


def _pool(batch: Batch, inputs: Inputs, n: Need, hidden_MD: Tensor, by_layer: dict[int, Tensor]) -> Tensor:
    """The mean of the last decisions of each sequence; with prompt=1 of the last positions before its first one."""
    params = dict(n.params)
    hidden_MD = by_layer.get(int(params.get("layer", -1)), hidden_MD)
    sequences = Key(inputs.seq_M, batch.size("S"))
    decided = torch.zeros_like(inputs.seq_M, dtype=torch.bool)
    decided[inputs.at_N] = True
    if params.get("prompt"):
        seen = torch.cumsum(decided.long(), 0)
        before_S = gather((seen - decided.long()).double(), sequences, "min").long()
        decided = (seen - before_S[inputs.seq_M]) == 0
    from_end = scan(decided.double(), 1.0, inputs.seq_M)
    return gather(hidden_MD, sequences, "mean", where=decided & (from_end <= params.get("last", 10)))
