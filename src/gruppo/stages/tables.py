"""Tables in memory: numbers by key, for example one row per task, looked up for a batch at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Key, gather

KEY = "key"  # the name of the column of keys in memory


def by_key(key_E: Tensor) -> tuple[Tensor, Key]:
    """The distinct keys of some rows, and the grouping of the rows by key: gather by it, then put."""
    keys, index = torch.unique(key_E, return_inverse=True)
    return keys, Key(index, len(keys))


@dataclass(frozen=True, eq=False)
class Table:
    """Rows sorted by an int64 key; columns of float64, NaN where a row has no value.

    A table is never changed: `put` returns a new one. In memory it is a plain dict of tensors (`plain`), which a
    checkpoint holds exactly.
    """

    key_T: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    columns: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])

    @classmethod
    def of(cls, memory: Mapping[str, Any], name: str) -> "Table":
        """The table of that name; empty if it has not been written yet."""
        held = memory.get(name)
        return cls() if held is None else cls(held[KEY], {k: held[k] for k in held if k != KEY})

    @property
    def plain(self) -> dict[str, Tensor]:
        """The dict to write to memory."""
        return {KEY: self.key_T, **self.columns}

    def __len__(self) -> int:
        return len(self.key_T)

    def known(self, keys: Tensor) -> Tensor:
        """Whether there is a row for each key."""
        if not len(self):
            return torch.zeros(len(keys), dtype=torch.bool, device=keys.device)
        return self.key_T[self._row(keys)].to(keys.device) == keys

    def look(self, keys: Tensor, column: str, default: float = float("nan")) -> Tensor:
        """The column at each key, on the device of the keys; `default` where there is no value."""
        if column not in self.columns or not len(self):
            return torch.full((len(keys),), default, dtype=torch.float64, device=keys.device)
        found = self.columns[column][self._row(keys)].to(keys.device)
        return torch.where(self.known(keys) & ~found.isnan(), found, default)

    def put(self, keys: Tensor, **columns: Tensor) -> "Table":
        """The table with new values in these columns at these keys; everything else stays as it is."""
        keys = keys.cpu()
        if len(torch.unique(keys)) != len(keys):
            raise ValueError(
                "a table was given two rows of one key: one of them would be lost. Join them first: by_key groups "
                "the rows by key."
            )
        key_T = torch.unique(torch.cat([self.key_T, keys]))  # sorted
        at = torch.searchsorted(key_T, keys)
        out: dict[str, Tensor] = {}
        for name in dict.fromkeys((*self.columns, *columns)):
            out[name] = self.look(key_T, name)
            if name in columns:
                out[name][at] = columns[name].detach().cpu().double()
        return Table(key_T, out)

    def lowered(self, key_E: Tensor, column: str, value_E: Tensor) -> "Table":
        """The table with the smallest value so far at each key; the rows may have keys in common."""
        keys, parts = by_key(key_E)
        now = gather(value_E, parts, "min")
        return self.put(keys, **{column: torch.minimum(now, self.look(keys, column, float("inf")))})

    def _row(self, keys: Tensor) -> Tensor:
        return torch.searchsorted(self.key_T, keys.cpu().contiguous()).clamp(max=len(self) - 1)
