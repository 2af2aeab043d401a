"""The running batch of one role: rows with a KV cache, filled from a queue and retired when they finish."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gruppo.data import key_hash
from gruppo.engines.base import Completion, Ints, NotFinite
from gruppo.engines.calls import Call, Item
from gruppo.engines.parked import Entry, Parked, Shelf
from gruppo.engines.plain import Plain, plain_of
from gruppo.engines.prefixes import FORKED, Prefill, Prefixes, Wanted, computed, extended, joined
from gruppo.engines.record import Record
from gruppo.engines.sampling import Draw, Settings, draw, noise
from gruppo.engines.steer import Move, checked, forced, steered
from gruppo.engines.texts import ends_in
from gruppo.policies.base import Incremental, weights_of
from gruppo.policies.cache import Cache

# Requests that found no row are admitted when this fraction of the rows is free. 512 requests of 2 to 100 tokens (mean
# 20) in 128 rows, one thread: 1.22 s; at every free row 1.21 s; only when all rows are free 1.48 s. A quarter keeps
# prefills few. Requests that have just come are admitted at the next token if there is room.
ADMIT = 0.25
NOISE = 8  # tokens of a row for which random numbers are made at once
AHEAD = 32  # columns that a new cache has in reserve; it grows when needed


@dataclass
class Limits:
    """Of an engine; halved when memory runs out."""

    rows: int
    prefill_tokens: int


def refuse_lost(lost: np.ndarray) -> None:
    """Rows whose logits give no distribution end the stream."""
    if lost.any():
        raise NotFinite(
            f"the logits of {int(lost.sum())} of {len(lost)} answers are not finite, so no token can be drawn: the "
            "weights of the model have left the range of numbers. Lower optim.lr, and go on from a checkpoint before "
            "this step; if no step was taken yet, use another model."
        )


class Stream:
    """Live rows are the first rows of the cache. A row that finishes is replaced at once by the last live row.

    So no step computes a finished row, and retiring copies at most one row for each that finishes: 73 retirements took
    5 % of a call of 512 requests, and saved four of five row steps. A stream that runs empty frees all of its tables.
    """

    def __init__(
        self,
        role: str,
        model: Incremental,
        eos: tuple[int, ...],
        limits: Limits,
        parked: Parked,
        decode: Callable[[Seq[int]], str] | None = None,
    ) -> None:
        self.role, self.model, self.eos, self.limits, self.parked = role, model, eos, limits, parked
        self.decode = decode
        self.device = model.device
        self.version = 0
        self.weights = (0, 0)  # version and number of changes
        self.faults: list[tuple[Call, Exception]] = []  # calls whose own steer failed
        self.prefilled = self.decoded = 0
        self.plain: Plain | None = None  # the model in fewer operations, if it can be had
        self.clear()

    @property
    def tables_on(self) -> torch.device:
        """Where the sampled tokens are kept."""
        return self.device

    @property
    def prefill(self) -> Prefill:
        return self.faster.prefill

    @property
    def faster(self) -> Incremental | Plain:
        """What computes: the model, or the same in fewer operations."""
        return self.plain or self.model

    def clear(self) -> list[Item]:
        """Drop all rows and the queue; returns the requests that were in flight."""
        record: Record | None = getattr(self, "record", None)
        left = [] if record is None else [item for item in record.items if item is not None]
        dtype = torch.promote_types(next(iter(self.model.parameters())).dtype, torch.float32)
        self.record = Record(self.eos, dtype, self.tables_on)
        self._settings: Settings | None = None
        self.noise_NB = torch.zeros(0)  # of the next tokens of the live rows
        self.noise_from = np.zeros(0, np.int64)  # the position of its first number in each row; empty: there are none
        self.queue: list[int] = []
        self.fresh = False  # requests have come since the last admission
        self.waiting: Prefixes | None = None  # a prefix of the last admission that the queue begins with
        self.cache: Cache | None = None
        self.row_slot = np.zeros(0, np.int64)  # the request of each live row
        self.row_pos = np.zeros(0, np.int64)  # the position that each live row samples next
        self.token_B = torch.zeros(0, dtype=torch.int64, device=self.device)  # the last token of each live row
        self.hidden_BD: Tensor | None = None  # of the last token of each live row
        return left

    @property
    def busy(self) -> bool:
        return len(self.queue) + len(self.row_slot) > 0

    @property
    def room(self) -> int:
        return max(self.limits.rows - len(self.row_slot), 0)

    @property
    def admits(self) -> bool:
        """Whether requests of the queue get rows at this token."""
        enough = not len(self.row_slot) or (self.fresh and self.room) or self.room >= ADMIT * self.limits.rows
        return bool(self.queue) and bool(enough)

    def join(self, items: list[Item], version: int) -> None:
        """Add the requests of one call. They get rows at the next token, if there is room."""
        if not self.busy:
            self.clear()
            self.version = version
            # PyTorch counts changes in place, so weights that were changed without a new version are noticed, too; but
            # not those of a fused optimiser, as the trainer's is: see `without_memory`.
            changes = sum(0 if p.is_inference() else p._version for p in weights_of(self.model))
            self.weights = (version, changes)
            self.plain = plain_of(self.model)
        self.queue += self.record.add(items)
        self.fresh = True

    def _sort(self) -> None:
        """Requests that begin alike are adjacent, so that at most one prefix has requests left in the queue."""
        same = [self.record.item(slot).same for slot in self.queue]
        place = {name: i for i, name in enumerate(dict.fromkeys(same))}
        order = sorted(range(len(same)), key=lambda i: place[same[i]])
        self.queue, self.fresh = [self.queue[i] for i in order], False

    def leave(self, call: Call) -> None:
        """Free what a call that nobody waits for still has in flight."""
        gone = {slot for slot, item in enumerate(self.record.items) if item is not None and item.call is call}
        self.queue = [slot for slot in self.queue if slot not in gone]
        done = np.isin(self.row_slot, list(gone))
        self.record.release(sorted(gone))
        if done.any():
            self._retire(done)
        if not self.busy:
            self.clear()

    def step(self) -> list[tuple[Item, Completion]]:
        """Sample one token for every live row; returns the completions that finish with it."""
        logits_BV = self._decode() if len(self.row_slot) else None
        if self.admits:
            new_BV = self._admit(self.room)
            logits_BV = new_BV if logits_BV is None else torch.cat([logits_BV, new_BV])
        assert logits_BV is not None
        moves = self._moves(logits_BV) if self.record.traces else {}
        drawn = self._draw(steered(logits_BV, moves))
        drawn = forced(drawn, logits_BV, self.settings, moves)
        count = self.row_pos - self.settings.columns["length"]
        self.record.write(self.row_slot, count, drawn, self.hidden_BD)
        self.token_B, self.row_pos, count = drawn.token_B, self.row_pos + 1, count + 1
        stopped_B = (drawn.token_B[:, None] == self.settings.stop_BS).any(1)
        stopped, lost = torch.stack([stopped_B, drawn.lost_B]).cpu().numpy()  # both at once: a GPU is waited for here
        dropped = np.zeros(len(count), np.bool_)
        dropped[[row for row, m in moves.items() if m.drop]] = True
        lost &= ~dropped
        refuse_lost(lost)
        self._end_texts(stopped, count)
        full = count >= self.settings.columns["limit"]
        if not (stopped | dropped | full).any():
            return []
        reason_B = np.where(dropped, "drop", np.where(stopped, "stop", np.where(full, "length", "")))
        return self._end(reason_B, count - dropped)

    @property
    def settings(self) -> Settings:
        """Of the live rows; made when they are needed."""
        if self._settings is None:
            self._settings, self.noise_from = self.record.settings(self.row_slot, self.device), np.zeros(0, np.int64)
        return self._settings

    def _draw(self, logits_BV: Tensor) -> Draw:
        """Random numbers are made for some tokens at once, which takes about as long as for one."""
        settings = self.settings  # first: where they are new, so are the rows
        at = int(self.row_pos[0] - self.noise_from[0]) if len(self.noise_from) else NOISE
        if not 0 <= at < NOISE or (self.row_pos != self.noise_from + at).any():
            at, self.noise_from = 0, self.row_pos
            self.noise_NB = noise(settings, self._tensor(self.row_pos + np.arange(NOISE)[:, None]))
        return draw(logits_BV, settings, self.noise_NB[at])

    def _end_texts(self, stopped: np.ndarray, count: np.ndarray) -> None:
        """Mark the rows in which a text that ends them has just ended."""
        texts = self.settings.columns["texts"]
        if self.decode is None or not texts.any():
            return
        rows = np.flatnonzero(texts)
        ids = self.record.ids[torch.from_numpy(self.row_slot[rows]).to(self.record.device)].cpu().numpy()
        for row, mine in zip(rows.tolist(), ids, strict=True):
            item = self.record.item(int(self.row_slot[row]))
            stopped[row] |= ends_in(self.decode, np.append(item.said, mine[: count[row]]), item.request.stop_text)

    def _moves(self, logits_BV: Tensor) -> dict[int, Move]:
        """What the steers of the live rows want at this token. Forks are made here."""
        moves: dict[int, Move] = {}
        for row in np.flatnonzero(self.record.columns["steered"][self.row_slot]).tolist():
            item = self.record.item(int(self.row_slot[row]))
            try:
                move = self._move(row, item, logits_BV[row])
            except Exception as error:  # the user's code: it ends its own call, and nobody else's
                self.faults.append((item.call, error))
                move = Move(drop=True)
            if move is not None:
                moves[row] = move
        return moves

    def _move(self, row: int, item: Item, logits_V: Tensor) -> Move | None:
        slot, pos = int(self.row_slot[row]), int(self.row_pos[row])
        count = pos - len(item.ids)
        ids = np.concatenate([item.ids, self.record.ids[slot, :count].cpu().numpy()])
        assert item.request.steer is not None
        move = item.request.steer(ids, pos, logits_V.cpu().numpy().copy())
        if move is None:
            return None
        checked(move, self.model.vocab)
        if not move.drop:
            self.record.traces[slot].note(count, move, self.model.vocab)
        if move.fork and not (item.parent is not None and count == 0):  # where it was forked it does not fork again
            self._fork(row, item, ids, count, move.fork)
        return move

    def _fork(self, row: int, item: Item, ids: Ints, count: int, copies: int) -> None:
        """Ask for what follows under other keys; they are given the row as it is, so nothing is computed again."""
        root, rows = item.root, self.limits.rows
        root.copies += copies
        if root.copies > rows:
            raise ValueError(
                f"steer: one request has forked {root.copies} times, and the engine has {rows} rows, so it might never "
                "end. Fork at fewer tokens, or raise engine.rows."
            )
        assert self.hidden_BD is not None
        request = item.request
        entry = Entry(ids, self._kv(row, len(ids)), {len(ids): self.hidden_BD[row].clone()})
        more, said = request.max_tokens - count, np.append(item.said, ids[len(item.ids) :])
        for _ in range(copies):
            key = int(key_hash(request.key, "fork", len(ids), len(item.forks)))
            asked = replace(request, prefix=ids, max_tokens=more, key=key)
            fork = Item(item.call, item.index, asked, item.remember, parent=item, start=count, said=said, entry=entry)
            item.forks.append(fork)
            self.queue += self.record.add(item.forks[-1:])
        self.fresh = True

    def _end(self, reason_B: np.ndarray, count: np.ndarray) -> list[tuple[Item, Completion]]:
        done = reason_B != ""
        slots = self.row_slot[done]
        ended = self.record.completions(slots, count[done], reason_B[done].tolist(), self.version, self.model.vocab)
        for row, slot, (item, completion) in zip(np.flatnonzero(done).tolist(), slots.tolist(), ended, strict=True):
            if item.remember:
                self._park(row, slot, item, completion)
            item.entry = None  # keys and values that nobody needs any more
        self.record.release(slots.tolist())
        self._retire(done)
        return ended

    def _park(self, row: int, slot: int, item: Item, completion: Completion) -> None:
        """Keep the keys and values of a row that ends. Its last token has none: nothing was sampled after it.

        The hidden states that its tokens were drawn from are kept, too, if the record has them (an eighth of the memory
        of the built-in policy, a twentieth of SmolLM2's): a fork before any of these tokens computes nothing. Without
        them, who goes on from here computes one token again.
        """
        ids = np.concatenate([item.ids, completion.ids[:-1]])
        first, n, ends = len(item.ids), max(len(completion.ids), 1), dict[int, Tensor]()
        if self.record.hidden is not None:
            ends = {first + t: end_D for t, end_D in enumerate(self.record.hidden[slot, :n].clone())}
        shelf: Shelf = (self.role, item.request.payload)
        self.parked.at(self.role, self.weights)
        self.parked.put(shelf, ids, lambda: self._kv(row, len(ids)), ends)

    def _kv(self, row: int, length: int) -> Tensor:
        """A copy of the first keys and values of a row, (layers, 2, length, width)."""
        assert self.cache is not None
        return self.cache.kv[:, :, row, :length].clone()

    def _tensor(self, x: np.ndarray) -> Tensor:
        return torch.from_numpy(x).to(self.device)

    def _decode(self) -> Tensor:
        assert self.cache is not None
        self.decoded += len(self.row_slot)
        span = int(self.row_pos.max())
        self.hidden_BD = self.faster.decode(self.token_B, self._tensor(self.row_pos - 1), self.cache, span)
        return self.faster.head(self.hidden_BD)

    def _retire(self, done: np.ndarray) -> None:
        live = int((~done).sum())
        holes, last = np.flatnonzero(done[:live]), live + np.flatnonzero(~done[live:])
        order = np.arange(live)
        order[holes] = last
        self._compact(done, holes, last, order)
        self.row_slot, self.row_pos = self.row_slot[order], self.row_pos[order]
        self.token_B = self._rows(self.token_B, order)
        self._settings = None

    def _rows(self, x_B: Tensor, order: np.ndarray) -> Tensor:
        return x_B[self._tensor(order)]

    def _compact(self, done: np.ndarray, holes: np.ndarray, last: np.ndarray, order: np.ndarray) -> None:
        """Rows `done` are dropped, and rows `last` take the places `holes`: `order` are the rows that stay."""
        if len(holes):
            assert self.cache is not None
            self.cache.move(self._tensor(last), self._tensor(holes), int(self.row_pos[last].max()))

    def _admit(self, room: int) -> Tensor:
        """Move requests from the queue into rows; returns the logits of their first tokens."""
        total = len(self.row_slot) + len(self.queue)
        if self.fresh:
            self._sort()
        slots, self.queue = self.queue[:room], self.queue[room:]
        names = [self.record.item(slot).same for slot in slots]
        prefixes = self._prefill(np.array(slots))
        more = bool(self.queue) and self.record.item(self.queue[0]).same == names[-1]
        self.waiting = prefixes.last() if more else None
        index = {u: i for i, u in enumerate(prefixes.ids)}
        at = np.array([index[name] for name in names])
        length, live = prefixes.length_U, len(self.row_slot)
        self._put(prefixes, at, np.array(slots), total)
        if self.record.watched:
            new_BD = prefixes.hidden_UD[self._tensor(at)]
            self.hidden_BD = torch.cat([self.hidden_BD, new_BD]) if live and self.hidden_BD is not None else new_BD
        self.row_slot = np.concatenate([self.row_slot, slots])
        self.row_pos = np.concatenate([self.row_pos, length[at]])
        self._settings = None
        return prefixes.logits_UV[self._tensor(at)]

    def _put(self, prefixes: Prefixes, at: np.ndarray, slots: np.ndarray, total: int) -> None:
        """Rows for these slots, after the live ones, with the keys and values of prefixes `at`."""
        length, live = prefixes.length_U, len(self.row_slot)
        start = np.cumsum(length) - length
        if self.cache is None:
            rows = min(self.limits.rows, total)
            self.cache = self.model.cache(rows, int(length.max()) + min(AHEAD, self.record.span))
        start_B, length_B = self._tensor(start[at]), self._tensor(length[at])
        self.cache.put(live, prefixes.kv_M, start_B, length_B, int(length.max()))
        self.cache.closed = not self.queue

    def _prefill(self, slots: np.ndarray) -> Prefixes:
        """Each distinct prefix of these requests once, and what forks share once; what is parked, or left from the
        last admission, is not computed again."""
        wanted: dict[bytes, Wanted] = {}
        for slot in slots.tolist():
            item = self.record.item(slot)
            if item.same not in wanted or wanted[item.same].entry is None:
                wanted[item.same] = self._wanted(item)
        parts: list[Prefixes] = []
        if self.waiting is not None and wanted.pop(self.waiting.ids[0], None):  # those that it was left for may be gone
            parts.append(self.waiting)
        known, tokens = [w for w in wanted.values() if w.past], self.limits.prefill_tokens
        for some, rows in (
            computed(self.model, self.prefill, [w for w in wanted.values() if not w.past], tokens, FORKED),
            extended(self.model, known, tokens),
        ):
            parts += some
            self.prefilled += rows
        return joined(parts)

    def _wanted(self, item: Item) -> Wanted:
        payload, found = item.request.payload, None if item.entry is None else (item.entry, len(item.ids))
        if item.remember and found is None:
            self.parked.at(self.role, self.weights)
            found = self.parked.find((self.role, payload), item.ids)
        return Wanted(item.same, item.ids, payload, *(found or (None, 0)))
