"""Keys and values of rows that have ended: a request whose prefix begins like one of them goes on from there.

Parked rows are tensors of their own, outside the table of live rows: that table is as wide as its longest row, and a
dialogue that waits for its environment would keep all of it. An entry never changes, so any number of requests may
share it.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from gruppo.engines.base import Ints

Shelf = tuple[str, bytes]  # role and payload: nothing is shared across either


@dataclass(frozen=True, eq=False)
class Entry:
    ids: Ints
    kv: Tensor  # (layers, 2, ids, width)
    ends: dict[int, Tensor] = field(default_factory=dict[int, Tensor])  # the hidden state after so many ids


class Parked:
    """The entries that were used last, with at most `budget` ids in all. Other weights drop them.

    Keys are sorted, so the entry with the longest common prefix is next to where a prefix would be inserted: two
    comparisons, and it is exact to the token, which hashes of blocks are not.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self.tokens = budget, 0
        self._weights: dict[str, object] = {}  # of each role
        self._entries: OrderedDict[tuple[Shelf, bytes], Entry] = OrderedDict()  # least recently used first
        self._keys: dict[Shelf, list[bytes]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        self._entries.clear()
        self._keys.clear()
        self.tokens = 0

    def at(self, role: str, weights: object) -> None:
        """Drop the entries of a role that come from other weights; `weights` is anything that tells them apart."""
        if self._weights.get(role) != weights:
            for shelf, key in [k for k in self._entries if k[0][0] == role]:
                self._remove(shelf, key)
            self._weights[role] = weights

    def find(self, shelf: Shelf, ids: Ints) -> tuple[Entry, int] | None:
        """The entry with the longest common prefix, and its length."""
        keys, key = self._keys.get(shelf, []), _key(ids)
        at = bisect_left(keys, key)
        near = [self._entries[shelf, k] for k in keys[max(at - 1, 0) : at + 1]]
        found = [(_common(e.ids, ids), e) for e in near]
        most, entry = max(found, key=lambda x: x[0], default=(0, None))
        if entry is None or most == 0:
            return None
        self._entries.move_to_end((shelf, _key(entry.ids)))
        return entry, most

    def put(self, shelf: Shelf, ids: Ints, kv: Callable[[], Tensor], ends: dict[int, Tensor]) -> None:
        """Keep the keys and values of these ids. `kv` copies them, and is called only if they are not here already."""
        keys, key = self._keys.setdefault(shelf, []), _key(ids)
        if not 0 < len(ids) <= self.budget:
            return
        at = bisect_left(keys, key)
        if at < len(keys) and keys[at].startswith(key):  # an entry that goes on after them
            self._entries[shelf, keys[at]].ends.update(ends)
            self._entries.move_to_end((shelf, keys[at]))
            return
        while at and key.startswith(keys[at - 1]):  # the turn before: its ids are the first ones of these
            ends = self._remove(shelf, keys[at - 1]).ends | ends
            at -= 1
        keys.insert(at, key)
        self._entries[shelf, key] = Entry(ids, kv(), ends)
        self.tokens += len(ids)
        while self.tokens > self.budget:
            self._remove(*next(iter(self._entries)))

    def _remove(self, shelf: Shelf, key: bytes) -> Entry:
        entry, keys = self._entries.pop((shelf, key)), self._keys[shelf]
        del keys[bisect_left(keys, key)]
        self.tokens -= len(entry.ids)
        return entry


def _key(ids: Ints) -> bytes:
    return ids.astype(">i8").tobytes()  # big-endian, so that bytes sort like numbers


def _common(a: Ints, b: Ints) -> int:
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
