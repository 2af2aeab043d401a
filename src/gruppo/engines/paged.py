"""The running batch on a GPU: rows in pages, tokens drawn in windows without waiting for the host."""

from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from gruppo.engines.base import Completion
from gruppo.engines.calls import Item
from gruppo.engines.graphs import Decoder
from gruppo.engines.pages import SCRATCH, Pool, pages_for
from gruppo.engines.prefill import Prefiller
from gruppo.engines.prefixes import Prefill, Prefixes
from gruppo.engines.sampling import Draw
from gruppo.engines.stream import Stream, refuse_lost
from gruppo.kernels.attention import PAGE
from gruppo.kernels.draw import draw_token
from gruppo.kernels.language import runs_on
from gruppo.policies.memory import free_memory
from gruppo.policies.tiny import TinyTransformer

# Tokens between two looks of the host at the GPU, which take about a millisecond; requests join in between. A row that
# ends within them computes the rest for nothing: 3.5 tokens on average, of 256. Where requests wait for a row anyway,
# windows are twice as wide; where nobody does, they grow to an eighth of what the youngest row has drawn, at most
# WIDEST.
WINDOW = 8
WIDEST = 32
ROWS = 512  # answers at once. A step of 0.5 B takes 1.49 ms with 256 and 1.97 with 512; more were not measured
# Requests that found no row are admitted when this fraction of the rows is free. Ragged work of benchmarks/gpu.py by
# limits, of the rate of equal lengths: 0.61 with a sixteenth or an eighth, 0.62 with a quarter.
ADMIT = 0.25
KINDS = (torch.bfloat16, torch.float16, torch.float32)
SHARE = 0.3  # of the free memory of the GPU that keys and values may take


def can_page(model: Any) -> bool:
    """Whether the fast path knows this model: our own transformer, on a GPU with Triton."""
    if not isinstance(model, TinyTransformer) or model.config.head_dim > 256:
        return False
    weight = model.output.weight
    return weight.is_cuda and weight.dtype in KINDS and runs_on(weight)


class PagedStream(Stream):
    """Rows are numbered anew whenever some end: their pages stay where they are.

    A row takes the pages of its longest possible answer when it is admitted, so that none can run out in the middle.
    Rows that are admitted together share the full pages of their prefix. Draws that need all logits (truncated,
    steered, with a report of likely ids) and texts that end an answer take one token at a time.
    """

    def __init__(self, *given: Any) -> None:
        self.decoder: Decoder | None = None
        self._prefiller: Prefiller | None = None
        self.pages: list[list[int]] = []  # of each live row
        super().__init__(*given)

    @property
    def tables_on(self) -> torch.device:
        return torch.device("cpu")  # where the tokens of a window arrive

    @property
    def prefill(self) -> Prefill:
        assert self.decoder is not None
        if self._prefiller is None or not self._prefiller.of(self.decoder):
            self._prefiller = Prefiller(self.decoder)
        return self._prefiller

    def clear(self) -> list[Item]:
        if self.decoder is not None:
            for pages in self.pages:
                self.decoder.pool.drop(pages)
        self.pages, self.moved = [], True  # the rows are not those that the decoder has
        self.table_BP = np.zeros((0, 0), np.int32)
        left = super().clear()
        self.record.states = False
        return left

    def join(self, items: list[Item], version: int) -> None:
        wanted = max(self._most(item) for item in items)
        if not self.busy:
            held, self.decoder = [self.decoder], None  # given away, so that it can be freed
            with torch.inference_mode(False), torch.no_grad():  # layers become views of what is made here
                self.decoder = decoder_of(self.model, wanted, min(self.limits.rows, ROWS), held)
                self.decoder.refresh()
        assert self.decoder is not None
        if wanted >= len(self.decoder.pool.users):
            self._refuse(items, wanted)
        super().join(items, version)

    @property
    def admits(self) -> bool:
        assert self.decoder is not None
        room = self.room if self.queue else 0
        return room > 0 and (not len(self.row_slot) or self.fresh or room >= ADMIT * self.decoder.rows)

    @property
    def room(self) -> int:
        """Rows for which there are pages. Those that share a prefix are counted as if they did not."""
        if fresh := self.fresh:
            self._sort()  # as they will be admitted
            self.fresh = fresh
        rows = super().room if self.decoder is None else self.decoder.rows - len(self.row_slot)
        free = 0 if self.decoder is None else self.decoder.pool.free
        for n, slot in enumerate(self.queue[:rows]):
            free -= self._most(self.record.item(slot))
            if free < 0:
                return n
        return rows

    def _sort(self) -> None:
        """Those with the longest limits first, so that few rows are left at the end: 0.61 instead of 0.54, as above."""
        self.queue.sort(key=lambda slot: -self.record.item(slot).request.max_tokens)
        super()._sort()

    def _most(self, item: Item) -> int:
        return pages_for(len(item.ids) + item.request.max_tokens)

    def _refuse(self, items: list[Item], wanted: int) -> NoReturn:
        assert self.decoder is not None
        pages = len(self.decoder.pool.users) - 1
        raise ValueError(
            f"a request needs {wanted} pages of {PAGE} tokens for its prompt and max_tokens, and the memory of the GPU "
            f"has room for {pages}, that is {pages * PAGE} tokens. Lower sampling.max_tokens, or use a smaller model."
        )

    # tokens

    def step(self) -> list[tuple[Item, Completion]]:
        if len(self.row_slot) and not self.admits and self._plain:
            return self._window()
        return super().step()

    @property
    def _plain(self) -> bool:
        """Whether the graph can draw: whole distributions, and nothing that looks at a token before the next."""
        mine = self.record.columns[self.row_slot]
        wanting = mine["greedy"] | (mine["top_k"] > 0) | (mine["top_p"] < 1) | mine["texts"] | mine["steered"]
        return not self.record.k and not wanting.any()

    def _upload(self) -> Decoder:
        """The rows to the GPU, if they have changed. Those beyond them write into the scratch page."""
        assert self.decoder is not None
        d, n = self.decoder, len(self.row_slot)
        d.count.zero_()
        d.out.zero_()
        if self.moved:
            mine, slots = self.record.columns[self.row_slot], self.row_slot
            newest = self.record.ids.numpy()[slots, self.row_pos - mine["length"] - 1]
            heat = mine["temperature"].astype(np.float32).view(np.int32).astype(np.int64)
            # In one copy: each waits for the GPU.
            wide = self.table_BP.shape[1]
            rows = np.concatenate([np.stack([newest, self.row_pos - 1, mine["key"], heat]), self.table_BP.T])
            sent = self._tensor(rows)
            d.state[:, :n] = sent[:3]
            d.heat[:n] = sent[3].int().view(torch.float32)
            d.table.zero_()
            d.table[:n, :wide] = sent[4:].T
            d.state[1, n:].zero_()
        return d

    def _window(self) -> list[tuple[Item, Completion]]:
        """Some tokens of every row, drawn in the graph."""
        d, n = self._upload(), len(self.row_slot)
        self.moved = False
        length, limit = (self.record.columns[name][self.row_slot] for name in ("length", "limit"))
        count = self.row_pos - length
        wide = 2 * WINDOW if self.queue else min(max(int(count.min()) // 8, WINDOW), WIDEST)
        steps = min(wide, int((limit - count).max()))
        for _ in range(steps):
            d.step(n, draw=True)
        self.decoded += n * steps
        out = d.out[:n].cpu().numpy()
        refuse_lost(out[:, -1] > 0)
        ids = out[:, :steps].astype(np.int64)
        self.record.write_window(self.row_slot, count, ids, out[:, WIDEST : WIDEST + steps])
        self.row_pos = self.row_pos + steps
        hit_BW = _any_of(ids, self.record.stops[self.row_slot])
        hit_BW &= count[:, None] + np.arange(steps) < limit[:, None]
        stopped = hit_BW.any(1)
        ends = np.where(stopped, count + hit_BW.argmax(1) + 1, limit)
        reason_B = np.where(ends > count + steps, "", np.where(stopped, "stop", "length"))
        return self._end(reason_B, ends) if (reason_B != "").any() else []

    def _rows(self, x_B: Tensor, order: np.ndarray) -> Tensor:
        return x_B  # the newest tokens are read from the record, on the host

    def _decode(self) -> Tensor:
        d, n = self._upload(), len(self.row_slot)
        self.moved = True  # the next token comes from outside
        self.hidden_BD = d.step(n, draw=False)
        self.decoded += n
        return self.model.head(self.hidden_BD)

    def _draw(self, logits_BV: Tensor) -> Draw:
        if self.settings.truncates or self.record.k or self.record.traces:  # these need all log-probabilities
            return super()._draw(logits_BV)
        heat_B, pos_B = self.settings.temperature_B.float(), self._tensor(self.row_pos)
        token_B, logp_B, lost_B = draw_token(logits_BV, heat_B, self.settings.key_B, pos_B)
        return Draw(token_B, logp_B.to(self.record.logp.dtype), logits_BV, None, lost_B)

    # rows

    def _put(self, prefixes: Prefixes, at: np.ndarray, slots: np.ndarray, total: int) -> None:
        """Pages for new rows. Full pages of a prefix are written once, the rest of it once for each row."""
        assert self.decoder is not None
        pool, held = self.decoder.pool, list[list[int]]()
        try:
            new = self._fill(pool, held, prefixes, at, slots)
            table_BP = _stacked([self.table_BP, _table(new)])
        except BaseException:  # such as no memory: no row has these pages yet, so nobody else would give them back
            for pages in held:
                pool.drop(pages)
            raise
        self.pages += new
        self.table_BP, self.moved = table_BP, True

    def _fill(
        self, pool: Pool, held: list[list[int]], prefixes: Prefixes, at: np.ndarray, slots: np.ndarray
    ) -> list[list[int]]:
        """The pages of each new row, with the prefix written into them. `held` collects what is taken."""
        length = prefixes.length_U
        full, first = length // PAGE, np.cumsum(length) - length
        shared: dict[int, list[int]] = {}
        source, page, cell = list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()

        def write(u: int, begin: int, end: int, pages: list[int]) -> None:
            tokens = np.arange(begin, end)
            source.append(first[u] + tokens)
            page.append(np.array(pages, np.int64)[(tokens - begin) // PAGE])
            cell.append(tokens % PAGE)

        new = list[list[int]]()
        for u, slot in zip(at.tolist(), slots.tolist(), strict=True):
            if u in shared:
                pool.share(shared[u])
                held.append(shared[u])
            else:
                shared[u] = pool.take(int(full[u]))
                held.append(shared[u])
                write(u, 0, int(full[u]) * PAGE, shared[u])
            own = pool.take(self._most(self.record.item(slot)) - int(full[u]))
            held.append(own)
            write(u, int(full[u]) * PAGE, int(length[u]), own)
            new.append(shared[u] + own)
        rows, pages, cells = (self._tensor(np.concatenate(x)) for x in (source, page, cell))
        pool.write(prefixes.kv_M[:, :, rows], pages, cells)
        return new

    def _compact(self, done: np.ndarray, holes: np.ndarray, last: np.ndarray, order: np.ndarray) -> None:
        assert self.decoder is not None
        for row in np.flatnonzero(done):
            self.decoder.pool.drop(self.pages[row])
        self.pages = [self.pages[row] for row in order]
        self.table_BP = self.table_BP[order]
        self.moved = True

    def _kv(self, row: int, length: int) -> Tensor:
        assert self.decoder is not None
        pages = self._tensor(np.array(self.pages[row][: pages_for(length)], np.int64))
        by_cell = self.decoder.pool.kv[:, :, pages].transpose(3, 4)  # (layers, 2, pages, PAGE, kv_heads, dim)
        return by_cell.flatten(2, 3)[:, :, :length].flatten(3)


def _any_of(ids_BW: np.ndarray, stops_BS: np.ndarray) -> np.ndarray:
    """Whether each id is one of those of its row."""
    if len(stops_BS) and (stops_BS == stops_BS[0]).all():
        return np.isin(ids_BW, stops_BS[0])
    return (ids_BW[:, :, None] == stops_BS[:, None]).any(-1)


def _table(pages: list[list[int]]) -> np.ndarray:
    table = np.full((len(pages), max(map(len, pages))), SCRATCH, np.int32)
    for row, mine in zip(table, pages, strict=True):
        row[: len(mine)] = mine
    return table


def _stacked(tables: list[np.ndarray]) -> np.ndarray:
    """Tables of different width, one below the other."""
    wide = max(t.shape[1] for t in tables)
    return np.concatenate([np.pad(t, ((0, 0), (0, wide - t.shape[1])), constant_values=SCRATCH) for t in tables])


def page_bytes(model: Any) -> int:
    """The keys and values of one page."""
    config = model.config
    return 2 * model.layers * config.kv_heads * config.head_dim * PAGE * model.output.weight.element_size()


def pool_pages(wanted: int, page: int, free: int) -> int:
    """The pages of a pool: those that are wanted, or as many as their share of the free memory has room for."""
    return min(wanted, int(SHARE * free) // page)


def decoder_of(model: Any, longest: int, rows: int, held: list[Decoder | None]) -> Decoder:
    """The decoder of a model: the one in `held` if `rows` of so many pages fit into it, else one with a larger pool.

    A pool that is as large as memory allows is kept, unless not even one such row fits.
    """
    old = held.pop()
    size = 0 if old is None or not old.valid or old.rows != rows else len(old.pool.users) - 1
    if old is not None and (size >= rows * longest or (old.pool.full and size >= longest)):
        return old
    config, weight = model.config, model.output.weight
    del old
    free_memory()
    free = torch.cuda.mem_get_info(weight.device)[0] if weight.is_cuda else 1 << 30
    # Any request of later callers fits, too, unless memory forbids.
    wanted = max(rows * longest, pages_for(model.context))
    pages = pool_pages(wanted, page_bytes(model), free)
    pool = Pool(model.layers, pages + 1, config.kv_heads, config.head_dim, weight.dtype, weight.device)
    pool.full = pages < wanted
    return Decoder(model, pool, rows, WIDEST)
