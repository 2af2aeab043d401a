"""One call of generate: rows with a KV cache, filled from a queue and retired when they finish."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gruppo.engines.base import Completion, NotFinite, Request
from gruppo.engines.record import Record
from gruppo.engines.sampling import draw, settings_of
from gruppo.policies.base import Incremental
from gruppo.policies.cache import Cache
from gruppo.policies.layout import cuts, packed

# New requests are admitted when this fraction of the rows is free. 512 requests of 2 to 100 tokens (mean 20) in 128
# rows, one thread: 1.22 s; at every free row 1.21 s; only when all rows are free 1.48 s. A quarter keeps prefills few.
ADMIT = 0.25
AHEAD = 32  # columns that a new cache has in reserve; it grows when needed
# A shared prefix is computed once if it is at least this fraction of a sequence: forks of one answer, not prompts with
# a common template, whose mask would cost more than it saves.
FORKED = 0.5


@dataclass(frozen=True)
class Prefixes:
    """Prefixes after prefill: packed keys and values, and the logits after each prefix."""

    ids: list[int]
    length_U: np.ndarray
    kv_M: Tensor
    logits_UV: Tensor

    def last(self) -> "Prefixes":
        n = int(self.length_U[-1])
        return Prefixes(self.ids[-1:], self.length_U[-1:], self.kv_M[:, :, -n:].clone(), self.logits_UV[-1:].clone())


def not_finite(lost: int, rows: int) -> NotFinite:
    return NotFinite(
        f"the logits of {lost} of {rows} answers are not finite, so no token can be drawn: the weights of the model "
        "have left the range of numbers. Lower optim.lr, and go on from a checkpoint before this step; if no step was "
        "taken yet, use another model."
    )


class Stream:
    """Live rows are the first rows of the cache. A row that finishes is replaced at once by the last live row.

    So no step computes a finished row, and retiring copies at most one row for each that finishes: 73 retirements took
    5 % of a call of 512 requests, and saved four of five row steps.
    """

    def __init__(
        self,
        model: Incremental,
        requests: list[Request],
        max_rows: int,
        eos: tuple[int, ...],
        version: int,
        tokens: int,
    ) -> None:
        self.model, self.requests, self.version, self.tokens = model, requests, version, tokens
        self.device = model.device
        self.max_rows = min(max_rows, len(requests))
        dtype = torch.promote_types(next(iter(model.parameters())).dtype, torch.float32)
        self.record = Record(requests, dtype, self.device)
        self.length_n = np.array([len(r.prefix) for r in requests])
        self.limit_n = np.array([r.max_tokens for r in requests])
        seen: dict[bytes, int] = {}
        same = [seen.setdefault(np.asarray(r.prefix, np.int64).tobytes(), len(seen)) for r in requests]
        self.prefix_n = np.array(same)
        # Requests with the same prefix are adjacent, so that at most one prefix has requests left in the queue.
        self.queue = np.argsort(self.prefix_n, kind="stable")
        self.waiting: Prefixes | None = None
        self.cache: Cache | None = None
        self.row_req = np.zeros(0, np.int64)  # the request of each live row
        self.row_pos = np.zeros(0, np.int64)  # the position that each live row samples next
        self.token_B = torch.zeros(0, dtype=torch.int64, device=self.device)  # the last token of each live row
        self.settings_n = settings_of(requests, eos, self.device)
        self.settings = self.settings_n
        self.prefilled = self.decoded = 0

    @property
    def busy(self) -> bool:
        return len(self.queue) + len(self.row_req) > 0

    def close(self) -> None:
        """Free its memory."""
        self.cache = self.waiting = None

    def step(self) -> list[tuple[int, Completion]]:
        """Sample one token for every live row; returns the completions that finish with it."""
        logits_BV = self._decode() if len(self.row_req) else None
        room = self.max_rows - len(self.row_req)
        if len(self.queue) and (room >= ADMIT * self.max_rows or logits_BV is None):
            new_BV = self._admit(room)
            logits_BV = new_BV if logits_BV is None else torch.cat([logits_BV, new_BV])
        assert logits_BV is not None
        drawn = draw(logits_BV, self.settings, self._tensor(self.row_pos))
        self.record.write(self.row_req, self.row_pos - self.length_n[self.row_req], drawn)
        self.token_B, self.row_pos = drawn.token_B, self.row_pos + 1
        count = self.row_pos - self.length_n[self.row_req]
        stopped_B = (drawn.token_B[:, None] == self.settings.stop_BS).any(1)
        stopped, lost = torch.stack([stopped_B, drawn.lost_B]).cpu().numpy()  # both at once: a GPU is waited for here
        if lost.any():
            raise not_finite(int(lost.sum()), len(lost))
        done = stopped | (count >= self.limit_n[self.row_req])
        if not done.any():
            return []
        ended = self.record.completions(self.row_req[done], count[done], stopped[done], self.version)
        self._retire(done)
        return ended

    def _tensor(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(x).to(self.device)

    def _decode(self) -> Tensor:
        assert self.cache is not None
        self.decoded += len(self.row_req)
        span = int(self.row_pos.max())
        hidden_BD = self.model.decode(self.token_B, self._tensor(self.row_pos - 1), self.cache, span)
        return self.model.head(hidden_BD)

    def _retire(self, done: np.ndarray) -> None:
        live = int((~done).sum())
        holes, last = np.flatnonzero(done[:live]), live + np.flatnonzero(~done[live:])
        if len(holes):
            assert self.cache is not None
            self.cache.move(self._tensor(last), self._tensor(holes), int(self.row_pos[last].max()))
        order = np.arange(live)
        order[holes] = last
        self.row_req, self.row_pos = self.row_req[order], self.row_pos[order]
        self.token_B = self.token_B[self._tensor(order)]
        self.settings = self.settings_n.take(self._tensor(self.row_req))

    def _admit(self, room: int) -> Tensor:
        """Move requests from the queue into rows; returns the logits of their first tokens."""
        req, self.queue = self.queue[:room], self.queue[room:]
        wanted = self.prefix_n[req]
        prefixes = self._prefill(req)
        more = len(self.queue) > 0 and self.prefix_n[self.queue[0]] == wanted[-1]
        self.waiting = prefixes.last() if more else None
        index = {u: i for i, u in enumerate(prefixes.ids)}
        at = np.array([index[u] for u in wanted.tolist()])
        length, live = prefixes.length_U, len(self.row_req)
        start = np.cumsum(length) - length
        if self.cache is None:
            self.cache = self.model.cache(self.max_rows, int(length.max()) + min(AHEAD, self.record.span))
        start_B, length_B = self._tensor(start[at]), self._tensor(length[at])
        self.cache.put(live, prefixes.kv_M, start_B, length_B, int(length.max()))
        self.cache.closed = not len(self.queue)
        self.row_req = np.concatenate([self.row_req, req])
        self.row_pos = np.concatenate([self.row_pos, self.length_n[req]])
        self.settings = self.settings_n.take(self._tensor(self.row_req))
        return prefixes.logits_UV[self._tensor(at)]

    def _prefill(self, req: np.ndarray) -> Prefixes:
        """Compute each distinct prefix of these requests once, and what forks share once. The one that is left from
        the last call is used again."""
        owner = {u: i for u, i in zip(self.prefix_n[req].tolist(), req.tolist(), strict=True)}
        parts = []
        if self.waiting is not None:
            parts.append(self.waiting)
            owner.pop(self.waiting.ids[0])
        ids = list(owner)
        prefixes = [np.asarray(self.requests[i].prefix, np.int64) for i in owner.values()]
        for a, b in cuts([len(p) for p in prefixes], self.tokens):
            tree, row_M = packed(prefixes[a:b], self.device, FORKED).tree()
            hidden_MD, kv_M = self.model.prefill(tree)
            self.prefilled += len(hidden_MD)
            if row_M is not None:
                hidden_MD, kv_M = hidden_MD[row_M], kv_M[:, :, row_M]
            length = np.array([len(p) for p in prefixes[a:b]])
            logits = self.model.head(hidden_MD[self._tensor(np.cumsum(length) - 1)])
            parts.append(Prefixes(ids[a:b], length, kv_M, logits))
        if len(parts) == 1:
            return parts[0]
        return Prefixes(
            [u for p in parts for u in p.ids],
            np.concatenate([p.length_U for p in parts]),
            torch.cat([p.kv_M for p in parts], 2),
            torch.cat([p.logits_UV for p in parts]),
        )
