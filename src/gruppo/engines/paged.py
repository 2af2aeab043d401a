"""One call of generate on a GPU: rows in pages, tokens drawn in windows without waiting for the host."""

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gruppo.engines.base import Completion, Request
from gruppo.engines.graphs import Decoder
from gruppo.engines.pages import SCRATCH, Pool, pages_for
from gruppo.engines.record import Record
from gruppo.engines.sampling import draw, settings_of
from gruppo.engines.stream import FORKED, not_finite
from gruppo.kernels.attention import PAGE
from gruppo.kernels.draw import draw_token
from gruppo.kernels.language import runs_on
from gruppo.policies.layout import cuts, packed
from gruppo.policies.memory import free_memory
from gruppo.policies.tiny import TinyTransformer

Floats = NDArray[Any]

# Tokens between two looks of the host at the GPU. A row that ends in between computes the rest for nothing: 3.5 tokens
# on average, of 256.
WINDOW = 8
ADMIT = 0.125  # new requests are admitted when this fraction of the rows is free


class PagedStream:
    """Like `Stream`. Live rows are numbered anew whenever some end: their pages stay where they are.

    A row takes the pages of its longest possible answer when it is admitted, so that none can run out in the middle.
    """

    def __init__(
        self, decoder: Decoder, requests: list[Request], eos: tuple[int, ...], version: int, tokens: int
    ) -> None:
        self.decoder, self.pool, self.model = decoder, decoder.pool, decoder.model
        decoder.refresh(version)
        self.requests, self.version, self.tokens = requests, version, tokens
        self.device: torch.device = self.model.device
        seen: dict[bytes, int] = {}
        self.prefix_n = [seen.setdefault(np.asarray(r.prefix, np.int64).tobytes(), len(seen)) for r in requests]
        self.queue = sorted(range(len(requests)), key=self.prefix_n.__getitem__)
        self.prefixes: dict[int, Prefix] = {}
        self.settings = settings_of(requests, eos, self.device)
        self.stop_nS = self.settings.stop_BS.cpu().numpy()
        self.key_n = self.settings.key_B.cpu().numpy()
        self.heat_n = self.settings.temperature_B.float().cpu().numpy()
        self.limit_n = np.array([r.max_tokens for r in requests])
        # Truncated draws and reports of likely ids need all logits: they are drawn outside of the graph.
        plain = not self.settings.truncates and not any(r.topk_logprobs for r in requests)
        wide = torch.promote_types(self.model.output.weight.dtype, torch.float32)
        self.record = None if plain else Record(requests, wide, self.device)
        span = int(self.limit_n.max(initial=0)) + WINDOW
        self.ids_nT = np.zeros((len(requests), span), np.int64)
        self.logp_nT = np.zeros((len(requests), span), np.float32)
        # of live rows: the request, the position of its newest token, how many tokens it has, its pages
        self.req_B, self.pos_B, self.count_B = (np.zeros(0, np.int64) for _ in range(3))
        self.pages: list[list[int]] = []
        wide = max((pages_for(len(r.prefix) + r.max_tokens) for r in requests), default=0)
        self.table_BP = np.zeros((0, wide), np.int32)
        self.moved = True  # the rows are not those that the decoder has
        self.prefilled = self.decoded = 0

    @property
    def busy(self) -> bool:
        return bool(self.queue or self.pages)

    def close(self) -> None:
        """Give the pages back."""
        for pages in (*self.pages, *(p.pages for p in self.prefixes.values())):
            self.pool.drop(pages)
        self.pages, self.queue, self.prefixes = [], [], {}

    @torch.no_grad()
    def step(self) -> list[tuple[int, Completion]]:
        """Sample up to WINDOW tokens for every live row; returns the completions that finish with them."""
        room = self.decoder.rows - len(self.pages)
        if self.queue and (room >= ADMIT * self.decoder.rows or not self.pages) and (ended := self._admit(room)):
            return ended
        if not self.pages:
            return []
        return self._window() if self.record is None else self._single()

    # admission

    def _admit(self, room: int) -> list[tuple[int, Completion]]:
        """Move requests from the queue into rows, and draw their first tokens."""
        new, free, known = list[int](), self.pool.free, set(self.prefixes)
        for i in self.queue[:room]:
            r = self.requests[i]
            free -= own_pages(r) + (0 if self.prefix_n[i] in known else pages_for(len(r.prefix)))
            if free < 0:
                break
            known.add(self.prefix_n[i])
            new.append(i)
        if not new:
            return [] if self.pages else self._refuse(self.queue[0])
        self.queue = self.queue[len(new) :]
        self._prefill(new)
        logits_BV = torch.stack([self.prefixes[self.prefix_n[i]].logits_V for i in new])
        pages = self._pages_of(new)
        self.pages += pages
        table = np.full((len(new), self.table_BP.shape[1]), SCRATCH, np.int32)
        for row, mine in zip(table, pages, strict=True):
            row[: len(mine)] = mine
        self.table_BP = np.concatenate([self.table_BP, table])
        left = {self.prefix_n[i] for i in self.queue[:1]}
        for u in [u for u in self.prefixes if u not in left]:
            self.pool.drop(self.prefixes.pop(u).pages)
        first, req = len(self.req_B), np.array(new)
        self.req_B = np.concatenate([self.req_B, req])
        self.pos_B = np.concatenate([self.pos_B, [len(self.requests[i].prefix) - 1 for i in new]])
        self.count_B = np.concatenate([self.count_B, np.zeros(len(new), np.int64)])
        self.moved = True
        return self._drawn(logits_BV, first)

    def _refuse(self, i: int) -> NoReturn:
        r, pages = self.requests[i], len(self.pool.users) - 1
        full, prefix = len(r.prefix) // PAGE, pages_for(len(r.prefix))
        fits = (pages + full - prefix) * PAGE - len(r.prefix)
        raise ValueError(
            f"a prompt of {len(r.prefix)} tokens with max_tokens={r.max_tokens} needs {own_pages(r) + prefix} pages of "
            f"{PAGE} tokens, and the cache has {pages}. Use at most {max(fits, 0)} max_tokens, or a larger "
            "engine.cache_tokens."
        )

    def _prefill(self, new: list[int]) -> None:
        """Compute each distinct prefix once, into pages of its own."""
        owner = {self.prefix_n[i]: i for i in new if self.prefix_n[i] not in self.prefixes}
        ids = [np.asarray(self.requests[i].prefix, np.int64) for i in owner.values()]
        numbers = list(owner)
        for a, b in cuts([len(p) for p in ids], self.tokens):
            tree, row_M = packed(ids[a:b], self.device, FORKED).tree()
            hidden_MD, kv_M = self.model.prefill(tree)
            self.prefilled += len(hidden_MD)
            if row_M is not None:
                hidden_MD, kv_M = hidden_MD[row_M], kv_M[:, :, row_M]
            length = [len(p) for p in ids[a:b]]
            pages = [self.pool.take(pages_for(n)) for n in length]
            cell = np.concatenate([np.arange(n) for n in length])
            page = np.concatenate([np.array(p)[np.arange(n) // PAGE] for p, n in zip(pages, length, strict=True)])
            self.pool.write(kv_M, self._tensor(page), self._tensor(cell % PAGE))
            logits_UV = self.model.head(hidden_MD[self._tensor(np.cumsum(length) - 1)])
            for u, p, logits_V in zip(numbers[a:b], pages, logits_UV, strict=True):
                self.prefixes[u] = Prefix(p, logits_V)

    def _pages_of(self, new: list[int]) -> list[list[int]]:
        """For each: the full pages of its prefix, shared; a copy of the last one if not full; empty ones to answer."""
        out, source, target = list[list[int]](), list[int](), list[int]()
        for i in new:
            r, prefix = self.requests[i], self.prefixes[self.prefix_n[i]].pages
            full = len(r.prefix) // PAGE
            self.pool.share(prefix[:full])
            own = self.pool.take(own_pages(r))
            source += prefix[full:]
            target += own[: len(prefix) - full]
            out.append(prefix[:full] + own)
        self.pool.copy(source, target)
        return out

    # tokens

    def _upload(self) -> None:
        """The rows to the GPU, if they have changed. Those beyond them write into the scratch page."""
        d, n = self.decoder, len(self.pages)
        d.count.zero_()
        d.out.zero_()
        if not self.moved and d.owner is self:
            return
        d.owner, self.moved = self, False
        newest = self.ids_nT[self.req_B, self.count_B - 1]
        d.state[:, :n] = self._tensor(np.stack([newest, self.pos_B, self.key_n[self.req_B]]))
        d.heat[:n] = self._tensor(self.heat_n[self.req_B])
        wide = self.table_BP.shape[1]
        d.table[:n, :wide] = self._tensor(self.table_BP)
        d.table[:n, wide:].zero_()
        d.table[n:].zero_()
        d.state[1, n:].zero_()

    def _window(self) -> list[tuple[int, Completion]]:
        """Some tokens of every row, drawn in the graph."""
        self._upload()
        d, n = self.decoder, len(self.pages)
        steps = min(WINDOW, int((self.limit_n[self.req_B] - self.count_B).max()))
        for _ in range(steps):
            d.step(n, draw=True)
        self.decoded += n * steps
        self.pos_B += steps
        out = d.out[:n].cpu().numpy()
        return self._take(out[:, :steps].astype(np.int64), out[:, WINDOW : WINDOW + steps], out[:, -1])

    def _single(self) -> list[tuple[int, Completion]]:
        """One token of every row, from logits."""
        self.moved = True
        self._upload()
        logits_BV = self.decoder.step(len(self.pages), draw=False)
        assert logits_BV is not None
        self.decoded += len(self.pages)
        return self._drawn(logits_BV, 0)

    def _drawn(self, logits_BV: Tensor, first: int) -> list[tuple[int, Completion]]:
        """The next token of the rows from `first` on, from their logits."""
        settings, pos_B = self.settings.take(self._tensor(self.req_B[first:])), self._tensor(self.pos_B[first:] + 1)
        if self.record is None:
            heat_B = settings.temperature_B.float()
            token_B, logp_B, lost_B = draw_token(logits_BV, heat_B, settings.key_B, pos_B)
        else:
            drawn = draw(logits_BV, settings, pos_B)
            token_B, logp_B, lost_B = drawn.token_B, drawn.logp_B, drawn.lost_B
            self.record.write(self.req_B[first:], self.count_B[first:], drawn)
        self.pos_B[first:] += 1
        ids, logp, lost = (x.cpu().numpy() for x in (token_B, logp_B, lost_B))
        return self._take(ids[:, None], logp[:, None], lost, first)

    def _take(self, ids: Floats, logp: Floats, lost: Floats, first: int = 0) -> list[tuple[int, Completion]]:
        """New tokens of the rows from `first` on; rows that end within them become completions."""
        if lost.any():
            raise not_finite(int(lost.sum()), len(lost))
        req, count = self.req_B[first:], self.count_B[first:]
        at = count[:, None] + np.arange(ids.shape[1])
        self.ids_nT[req[:, None], at], self.logp_nT[req[:, None], at] = ids, logp
        limit = self.limit_n[req]
        stop_BW = (ids[:, :, None] == self.stop_nS[req][:, None]).any(-1) & (at < limit[:, None])
        stopped = stop_BW.any(1)
        length = np.where(stopped, count + stop_BW.argmax(1) + 1, limit)
        count += ids.shape[1]
        done = np.flatnonzero(length <= count)
        ended = [(int(req[b]), self._completion(int(req[b]), int(length[b]), bool(stopped[b]))) for b in done]
        if len(done):
            self._retire(first + done)
        return ended

    def _retire(self, rows: np.ndarray) -> None:
        for b in rows[::-1]:
            self.pool.drop(self.pages.pop(int(b)))
        self.req_B, self.pos_B, self.count_B = (np.delete(x, rows) for x in (self.req_B, self.pos_B, self.count_B))
        self.table_BP = np.delete(self.table_BP, rows, 0)
        self.moved = True

    def _completion(self, i: int, length: int, stopped: bool) -> Completion:
        if self.record is not None:
            one = np.array([i]), np.array([length]), np.array([stopped])
            return self.record.completions(*one, self.version)[0][1]
        return Completion(
            ids=self.ids_nT[i, :length].copy(),
            logp=self.logp_nT[i, :length].copy(),
            version=np.full(length, self.version, np.int32),
            reason="stop" if stopped else "length",
        )

    def _tensor(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(x).to(self.device)


@dataclass(frozen=True)
class Prefix:
    """A prefix after prefill: its pages, and the logits after it."""

    pages: list[int]
    logits_V: Tensor


def own_pages(r: Request) -> int:
    """The pages of a row that are not full pages of its prefix, which it shares."""
    return pages_for(len(r.prefix) + r.max_tokens) - len(r.prefix) // PAGE


SHARE = 0.3  # of the free memory of the GPU that keys and values may take


def can_page(model: Any) -> bool:
    """Whether the fast path knows this model: our own transformer, on a GPU with Triton."""
    return (
        isinstance(model, TinyTransformer)
        and model.device.type == "cuda"
        and runs_on(model.output.weight)
        and model.config.head_dim <= 256
    )


def decoder_of(model: Any, requests: list[Request], rows: int, old: Decoder | None) -> Decoder:
    """The decoder of a model: the old one if these requests fit into it, else one with a larger pool."""
    longest = max(own_pages(r) + pages_for(len(r.prefix)) for r in requests)
    if old is not None and old.valid and longest < len(old.pool.users):
        return old
    config, weight = model.config, model.model.embed_tokens.weight
    page = 2 * model.layers * config.kv_heads * config.head_dim * PAGE * weight.element_size()
    del old
    free_memory()
    free = torch.cuda.mem_get_info(weight.device)[0] if weight.is_cuda else 1 << 30
    pages = max(min(rows * longest + 1, int(SHARE * free) // page), longest + 1)
    pool = Pool(model.layers, pages, config.kv_heads, config.head_dim, weight.dtype, weight.device)
    return Decoder(model, pool, rows, WINDOW)
