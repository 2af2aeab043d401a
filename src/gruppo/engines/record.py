"""Requests in flight, one slot each: their settings on the host, and tables of what was sampled on a device."""

import numpy as np
import torch
from torch import Tensor

from gruppo.engines.base import Completion, Ints, Reason
from gruppo.engines.calls import Item
from gruppo.engines.sampling import COLUMNS, Draw, Settings, columns_of, settings_from, stops_of
from gruppo.engines.steer import Trace


class Record:
    """A slot that is free is used again. Tables are as wide as the largest max_tokens so far."""

    def __init__(self, eos: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.eos, self.device = eos, device
        self.items: list[Item | None] = []
        self.columns = np.zeros(0, COLUMNS)
        self.stops = np.full((0, 0), -1, np.int64)
        self.free: list[int] = []
        self.ids = torch.zeros((0, 0), dtype=torch.int64, device=device)
        self.logp = torch.zeros((0, 0), dtype=dtype, device=device)
        self.top_ids = torch.zeros((0, 0, 0), dtype=torch.int64, device=device)
        self.top_logp = torch.zeros((0, 0, 0), dtype=dtype, device=device)
        self.hidden: Tensor | None = None  # the states that tokens were drawn from, if some are to be parked
        self.keeps, self.states = False, True  # whether some request is to be parked; whether with its hidden states
        self.allowed: dict[int, list[Ints]] = {}  # by truncation
        self.traces: dict[int, Trace] = {}  # of what is steered

    @property
    def span(self) -> int:
        return self.ids.shape[1]

    @property
    def k(self) -> int:
        return self.top_ids.shape[2]

    def add(self, items: list[Item]) -> list[int]:
        """Slots for the requests of one call."""
        requests = [item.request for item in items]
        stops = stops_of(requests, self.eos)
        self._grow(
            len(items) - len(self.free),
            max(r.max_tokens for r in requests),
            max(r.topk_logprobs for r in requests),
            stops.shape[1],
        )
        slots = [self.free.pop() for _ in items]
        self.columns[slots] = columns_of(requests)
        self.stops[slots] = -1
        self.stops[slots, : stops.shape[1]] = stops
        for slot, item in zip(slots, items, strict=True):
            self.items[slot] = item
            self.keeps |= item.remember
            if item.request.truncates:
                self.allowed[slot] = []
            if item.request.steer is not None:
                self.traces[slot] = Trace()
        return slots

    def _grow(self, more: int, span: int, k: int, stops: int) -> None:
        old = len(self.items)
        size = old if more <= 0 else old + max(more, old)  # twice as many, so tables are seldom copied
        if stops > self.stops.shape[1] or size > old:
            wide = np.full((size, max(stops, self.stops.shape[1])), -1, np.int64)
            wide[:old, : self.stops.shape[1]] = self.stops
            self.stops = wide
        if size > old:
            self.columns = np.concatenate([self.columns, np.zeros(size - old, COLUMNS)])
            self.items += [None] * (size - old)
            self.free += range(size - 1, old - 1, -1)
        span, k = max(span, self.span), max(k, self.k)
        if size > old or span > self.span or k > self.k:
            self.ids, self.logp = (_larger(t, size, span) for t in (self.ids, self.logp))
            self.top_ids, self.top_logp = (_larger(t, size, span, k) for t in (self.top_ids, self.top_logp))
            self.hidden = None if self.hidden is None else _larger(self.hidden, size, span, self.hidden.shape[2])

    def release(self, slots: list[int]) -> None:
        for slot in slots:
            self.items[slot] = None
            self.allowed.pop(slot, None)
            self.traces.pop(slot, None)
        self.free += slots

    def item(self, slot: int) -> Item:
        item = self.items[slot]
        assert item is not None
        return item

    def settings(self, slots: np.ndarray, device: torch.device) -> Settings:
        return settings_from(self.columns[slots], self.stops[slots], device)

    @property
    def watched(self) -> bool:
        """Whether hidden states are needed besides the logits."""
        return (self.keeps and self.states) or bool(self.traces)

    def write(self, slots: np.ndarray, count: np.ndarray, drawn: Draw, hidden_BD: Tensor | None) -> None:
        """Store token number `count` of each slot, and the hidden state that it was drawn from."""
        cell_B = torch.from_numpy(slots * self.span + count).to(self.device)
        self.ids.view(-1).index_copy_(0, cell_B, drawn.token_B.to(self.device))
        self.logp.view(-1).index_copy_(0, cell_B, drawn.logp_B.to(self.device))
        if self.keeps and self.states and hidden_BD is not None:
            if self.hidden is None:
                self.hidden = hidden_BD.new_zeros(*self.ids.shape, hidden_BD.shape[1])
            self.hidden.flatten(0, 1).index_copy_(0, cell_B, hidden_BD)
        if self.k:
            best = drawn.logp_BV.topk(self.k, -1)
            self.top_ids.flatten(0, 1).index_copy_(0, cell_B, best.indices.to(self.device))
            self.top_logp.flatten(0, 1).index_copy_(0, cell_B, best.values.to(self.device))
        if drawn.keep_BV is not None and self.allowed:
            row, ids = np.nonzero(drawn.keep_BV.cpu().numpy())
            starts = np.searchsorted(row, np.arange(1, len(slots)))
            for slot, kept in zip(slots.tolist(), np.split(ids, starts), strict=True):
                if slot in self.allowed:
                    self.allowed[slot].append(kept)

    def write_window(self, slots: np.ndarray, count: np.ndarray, ids: np.ndarray, logp: np.ndarray) -> None:
        """Store some tokens of each slot, (B, W) from number `count` on; none beyond its limit. Tables on a CPU."""
        at = count[:, None] + np.arange(ids.shape[1])
        inside = at < self.columns["limit"][slots][:, None]
        cell = (slots[:, None] * self.span + at)[inside]
        for table, new in ((self.ids, ids), (self.logp, logp)):
            table.view(-1).numpy()[cell] = new[inside]

    def completions(
        self, slots: np.ndarray, count: np.ndarray, reasons: list[Reason], version: int, vocab: int
    ) -> list[tuple[Item, Completion]]:
        """Completions of these slots, of `count` tokens each."""
        rows_B = torch.from_numpy(slots).to(self.device)
        tables = (self.ids, self.logp, self.top_ids, self.top_logp)
        ids, logp, top_ids, top_logp = (table[rows_B].cpu().numpy() for table in tables)
        out = []
        for b, (slot, n, reason) in enumerate(zip(slots.tolist(), count.tolist(), reasons, strict=True)):
            item, allowed, trace = self.item(slot), self.allowed.get(slot), self.traces.get(slot)
            k = item.request.topk_logprobs
            completion = Completion(
                ids=ids[b, :n].copy(),
                logp=logp[b, :n].copy(),
                version=np.full(n, version, np.int32),
                reason=reason,
                topk=(top_ids[b, :n, :k].copy(), top_logp[b, :n, :k].copy()) if k else None,
                allowed=allowed if trace is None else trace.allowed(n, allowed, vocab),
                forced=None if trace is None else trace.mask(n),
            )
            out.append((item, completion))
        return out


def _larger(table: Tensor, *shape: int) -> Tensor:
    """The same values in a larger table; the rest is zero."""
    out = table.new_zeros(shape)
    out[tuple(slice(n) for n in table.shape)] = table
    return out
