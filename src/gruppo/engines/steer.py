"""Steering: a function that looks at every token before it is drawn, and may restrict, force, fork or drop.

What it did is recorded in the completion, so that a trainer knows the distribution that a token came from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gruppo.engines.base import Ints, Reals
from gruppo.engines.sampling import Draw, Settings


@dataclass(frozen=True, eq=False)
class Move:
    """What to do at one token. A move without anything is plain sampling, bit for bit."""

    allow: Ints | None = None  # only these ids may be drawn; top_k and top_p come after it
    add: Reals | None = None  # one number for each id, added to the logits before the temperature
    force: int | None = None  # this id is taken: nothing is drawn, and it has the policy's own log-probability
    fork: int = 0  # so many copies of the row go on from here, beside it, with random keys of their own
    drop: bool = False  # the row ends here, without this token


class Steer(Protocol):
    """A pure function: the same arguments give the same move."""

    def __call__(self, ids: Ints, position: int, logits: Reals, /) -> Move | None:
        """`ids` so far with the prefix; the absolute position of the token to be drawn; its logits, one for each id."""
        ...


def checked(move: Move, vocab: int) -> Move:
    """Refuses a move that no token can follow."""
    if not isinstance(move, Move):
        raise ValueError(f"steer returned {move!r}: return a Move, or None for plain sampling.")
    for name, value in (("allow", move.allow), ("force", move.force), ("fork", move.fork)):
        if value is not None and np.asarray(value).dtype.kind not in "iu":
            raise ValueError(f"steer: {name}={value!r} is no whole number. Use ids; of a mask, np.flatnonzero(mask).")
    if move.add is not None and (np.asarray(move.add).dtype.kind not in "fiu" or not np.all(np.abs(move.add) < 1e30)):
        raise ValueError("steer: add has numbers that are not finite. Use finite ones; allow=… restricts the ids.")
    ids = [] if move.allow is None else [int(i) for i in move.allow]
    for i in [*ids, *([] if move.force is None else [move.force])]:
        if not 0 <= i < vocab:
            raise ValueError(f"steer: id {i} is outside the vocabulary 0..{vocab - 1}. Use ids of the policy's own.")
    if move.allow is not None and not ids:
        raise ValueError("steer: allow is empty, so nothing could be drawn. Allow an id, or use drop=True.")
    if move.add is not None and np.shape(move.add) != (vocab,):
        raise ValueError(f"steer: add has the shape {np.shape(move.add)}. Give one number for each of {vocab} ids.")
    if move.fork < 0:
        raise ValueError(f"steer: fork={move.fork} is a number of copies. Use 0 or more.")
    return move


def steered(logits_BV: Tensor, moves: Mapping[int, Move]) -> Tensor:
    """The logits of the distribution to be drawn from; those of rows without a move are the same."""
    if not any(m.add is not None or m.allow is not None for m in moves.values()):
        return logits_BV
    out_BV = logits_BV.clone()
    for row, m in moves.items():
        if m.add is not None:
            out_BV[row] += torch.as_tensor(np.asarray(m.add), dtype=out_BV.dtype, device=out_BV.device)
        if m.allow is not None:
            gone = torch.ones_like(out_BV[row], dtype=torch.bool)
            gone[torch.as_tensor(np.asarray(m.allow, np.int64), device=out_BV.device)] = False
            out_BV[row] = out_BV[row].masked_fill(gone, float("-inf"))
    return out_BV


def forced(drawn: Draw, logits_BV: Tensor, settings: Settings, moves: Mapping[int, Move]) -> Draw:
    """The draw with forced tokens in place. `logits_BV` are those of the policy."""
    rows = [row for row, m in moves.items() if m.force is not None]
    if not rows:
        return drawn
    token_B, logp_B, lost_B = drawn.token_B.clone(), drawn.logp_B.clone(), drawn.lost_B.clone()
    for row in rows:
        token_B[row] = moves[row].force or 0
        warm_V = logits_BV[row] / settings.temperature_B[row].to(logits_BV.dtype)
        logp_B[row] = torch.log_softmax(warm_V, -1)[token_B[row]]
        lost_B[row] = ~torch.isfinite(logp_B[row])
    return replace(drawn, token_B=token_B, logp_B=logp_B, lost_B=lost_B)


class Trace:
    """What was done to one completion, token by token."""

    def __init__(self) -> None:
        self.forced: set[int] = set()
        self.allow: dict[int, Ints] = {}

    def note(self, count: int, move: Move, vocab: int) -> None:
        if move.force is not None:  # any id might have been forced: its log-probability is of all of them
            self.forced.add(count)
            self.allow[count] = np.arange(vocab)
        elif move.allow is not None:
            self.allow[count] = np.unique(np.asarray(move.allow, np.int64))

    def mask(self, n: int) -> np.ndarray | None:
        return np.isin(np.arange(n), list(self.forced)) if self.forced else None

    def allowed(self, n: int, kept: list[Ints] | None, vocab: int) -> list[Ints] | None:
        """Ids with positive probability at each of `n` tokens, given those that truncation kept."""
        if kept is None and not (set(self.allow) - self.forced):
            return None
        everything = np.arange(vocab)
        out: list[Ints] = []
        for t in range(n):
            mine, before = self.allow.get(t, everything), everything if kept is None else kept[t]
            out.append(mine if t in self.forced else np.intersect1d(mine, before))
        return out
