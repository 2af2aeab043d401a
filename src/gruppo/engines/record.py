"""Sampled tokens of a stream, in tables on the device; a finished row becomes a completion."""

import numpy as np
import torch
from torch import Tensor

from gruppo.engines.base import Completion, Ints, Request
from gruppo.engines.sampling import Draw


class Record:
    """One row per request, as long as the largest max_tokens."""

    def __init__(self, requests: list[Request], dtype: torch.dtype, device: torch.device) -> None:
        self.requests, self.device = requests, device
        self.span = max((r.max_tokens for r in requests), default=0)
        self.k = max((r.topk_logprobs for r in requests), default=0)
        shape = (len(requests) * self.span,)
        self.ids = torch.zeros(shape, dtype=torch.int64, device=device)
        self.logp = torch.zeros(shape, dtype=dtype, device=device)
        self.top_ids = torch.zeros((*shape, self.k), dtype=torch.int64, device=device)
        self.top_logp = torch.zeros((*shape, self.k), dtype=dtype, device=device)
        self.allowed: dict[int, list[Ints]] = {i: [] for i, r in enumerate(requests) if r.truncates}

    def write(self, req: np.ndarray, count: np.ndarray, drawn: Draw) -> None:
        """Store token number `count` of each request `req`."""
        cell_B = torch.from_numpy(req * self.span + count).to(self.device)
        self.ids.index_copy_(0, cell_B, drawn.token_B)
        self.logp.index_copy_(0, cell_B, drawn.logp_B)
        if self.k:
            best = drawn.logp_BV.topk(self.k, -1)
            self.top_ids.index_copy_(0, cell_B, best.indices)
            self.top_logp.index_copy_(0, cell_B, best.values)
        if drawn.keep_BV is not None:
            row, ids = np.nonzero(drawn.keep_BV.cpu().numpy())
            starts = np.searchsorted(row, np.arange(1, len(req)))
            for i, kept in zip(req.tolist(), np.split(ids, starts), strict=True):
                if i in self.allowed:
                    self.allowed[i].append(kept)

    def completions(
        self, req: np.ndarray, count: np.ndarray, stopped: np.ndarray, version: int
    ) -> list[tuple[int, Completion]]:
        """Completions of the finished requests `req`, of `count` tokens each."""
        req_B = torch.from_numpy(req).to(self.device)

        def rows(table: Tensor) -> np.ndarray:
            return table.view(len(self.requests), self.span, *table.shape[1:])[req_B].cpu().numpy()

        ids, logp, top_ids, top_logp = (rows(t) for t in (self.ids, self.logp, self.top_ids, self.top_logp))
        out = []
        for b, (i, n, stop) in enumerate(zip(req.tolist(), count.tolist(), stopped.tolist(), strict=True)):
            k = self.requests[i].topk_logprobs
            completion = Completion(
                ids=ids[b, :n].copy(),
                logp=logp[b, :n].copy(),
                version=np.full(n, version, np.int32),
                reason="stop" if stop else "length",
                topk=(top_ids[b, :n, :k].copy(), top_logp[b, :n, :k].copy()) if k else None,
                allowed=self.allowed.pop(i, None),
            )
            out.append((i, completion))
        return out
