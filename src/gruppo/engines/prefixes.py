"""Prefixes before the first token is sampled: computed in one pass, or taken from parked rows."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gruppo.data import Inputs
from gruppo.data.prefix import WORTH, ranges
from gruppo.engines.base import Ints
from gruppo.engines.parked import Entry
from gruppo.policies.base import Incremental
from gruppo.policies.layout import Past, cuts, packed

# A shared prefix is computed once if it is at least this fraction of a sequence: forks of one answer, not prompts with
# a common template, whose mask would cost more than it saves.
FORKED = 0.5
Prefill = Callable[[Inputs], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Prefixes:
    """Distinct prefixes: packed keys and values, and the last hidden state and the logits of each."""

    ids: list[bytes]  # what tells them apart
    length_U: np.ndarray
    kv_M: Tensor
    hidden_UD: Tensor
    logits_UV: Tensor

    def last(self) -> "Prefixes":
        n = int(self.length_U[-1])
        kv_M = self.kv_M[:, :, -n:].clone()
        return Prefixes(
            self.ids[-1:], self.length_U[-1:], kv_M, self.hidden_UD[-1:].clone(), self.logits_UV[-1:].clone()
        )


def joined(parts: list[Prefixes]) -> Prefixes:
    if len(parts) == 1:
        return parts[0]
    return Prefixes(
        [u for p in parts for u in p.ids],
        np.concatenate([p.length_U for p in parts]),
        torch.cat([p.kv_M for p in parts], 2),
        torch.cat([p.hidden_UD for p in parts]),
        torch.cat([p.logits_UV for p in parts]),
    )


@dataclass(frozen=True)
class Wanted:
    """A prefix, and the parked row that it begins like."""

    name: bytes
    ids: Ints
    payload: bytes = b""
    entry: Entry | None = None
    known: int = 0  # ids in common

    @property
    def whole(self) -> bool:
        """Nothing is left to compute, not even the last hidden state."""
        return self.entry is not None and self.known == len(self.ids) and self.known in self.entry.ends

    @property
    def past(self) -> int:
        """Keys and values to go on from. The last id is computed again where its hidden state is unknown."""
        known = self.known if self.whole else min(self.known, len(self.ids) - 1)
        return known if known >= WORTH * len(self.ids) else 0


def computed(
    model: Incremental, prefill: Prefill, wanted: list[Wanted], tokens: int, forked: float
) -> tuple[list[Prefixes], int]:
    """Prefixes without a past, at most `tokens` ids at once, and how many rows went through the model."""
    parts: list[Prefixes] = []
    rows = 0
    for a, b in cuts([len(w.ids) for w in wanted], tokens):
        some = wanted[a:b]
        inputs = packed([w.ids for w in some], model.device, forked, payloads=[w.payload for w in some])
        tree, row_M = inputs.tree()
        hidden_MD, kv_M = prefill(tree)
        rows += len(hidden_MD)
        if row_M is not None:
            hidden_MD, kv_M = hidden_MD[row_M], kv_M[:, :, row_M]
        length = np.array([len(w.ids) for w in some])
        hidden_UD = hidden_MD[_tensor(np.cumsum(length) - 1, model)]
        parts.append(Prefixes([w.name for w in some], length, kv_M, hidden_UD, model.head(hidden_UD)))
    return parts, rows


def extended(model: Incremental, wanted: list[Wanted], tokens: int) -> tuple[list[Prefixes], int]:
    """Prefixes that go on from parked rows: only what is new goes through the model."""
    parts: list[Prefixes] = []
    rows = 0
    for a, b in cuts([len(w.ids) for w in wanted], tokens):
        some = wanted[a:b]
        known = np.array([w.past for w in some])
        length = np.array([len(w.ids) for w in some])
        distinct = {id(w.entry): w.entry for w in some if w.entry is not None}
        size = np.array([len(e.ids) for e in distinct.values()])
        first = dict(zip(distinct, (np.cumsum(size) - size).tolist(), strict=True))
        start = np.array([first[id(w.entry)] for w in some])
        kv_P = torch.cat([e.kv for e in distinct.values()], 2)
        new = np.flatnonzero(length > known)
        end_U = [w.entry.ends[len(w.ids)] if w.whole and w.entry is not None else None for w in some]
        kv_M = kv_P
        if len(new):
            inputs = packed([some[i].ids[known[i] :] for i in new], model.device, after=known[new])
            hidden_MD, kv_new = model.extend(inputs, Past(kv_P, start[new], known[new]))
            rows += len(hidden_MD)
            kv_M = torch.cat([kv_P, kv_new], 2)
            for i, end in zip(new, np.cumsum((length - known)[new]) - 1, strict=True):
                end_U[i] = hidden_MD[end]
        hidden_UD = torch.stack([end_D for end_D in end_U if end_D is not None])
        at_M = _rows(start, known, length, int(size.sum()))
        parts.append(
            Prefixes(
                [w.name for w in some],
                length,
                kv_M[:, :, _tensor(at_M, model)],
                hidden_UD,
                model.head(hidden_UD),
            )
        )
    return parts, rows


def _rows(start: np.ndarray, known: np.ndarray, length: np.ndarray, before: int) -> np.ndarray:
    """The row of every position of every prefix: its past, then its new ones, which begin at row `before`."""
    new = length - known
    first = before + np.cumsum(new) - new
    return ranges(np.stack([start, first], 1).ravel(), np.stack([known, new], 1).ravel())


def _tensor(x: np.ndarray, model: Incremental) -> Tensor:
    return torch.from_numpy(x).to(model.device)
