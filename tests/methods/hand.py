"""Batches written by hand, and sums over them in plain Python; `objective` and `worked` ask the code under test."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gruppo.data import Batch, Episode, Source, Status, Use, pack, single_turn
from gruppo.lab.laws.world import World
from gruppo.stages import Context, Method, Stats, Term


def answer(uid: int, group: str, tokens: int, reward: float | None, **fields: Any) -> Episode:
    """One answer of so many tokens. `reward=None`: not judged yet."""
    logp = np.full(tokens, -1.0, np.float32)
    ids = np.full(tokens, 5, np.int64)
    e = single_turn(uid, f"task of {group}", group, np.array([1, 2]), ids, logp, 0, **fields)
    e.reward = {} if reward is None else {"task": reward}
    return e


def by_expert(e: Episode, use: Use = Use.LEARN) -> Episode:
    """The answer as an expert's."""
    s = e.sequences[0]
    source = np.where(s.source == Source.POLICY, Source.EXPERT, s.source).astype(np.int8)
    nothing = np.full(len(s.ids), np.nan, np.float32)
    return replace(e, sequences=[replace(s, source=source, logp=nothing)], source=Source.EXPERT, use=use)


def batch_of(episodes: Sequence[Episode], drawn: Mapping[str, int] | None = None, **columns: Sequence[float]) -> Batch:
    """The batch, with columns of numbers."""
    batch = pack(episodes, drawn=drawn, dtype=torch.float64)
    return batch.with_columns(**{k: torch.tensor(list(v), dtype=torch.float64) for k, v in columns.items()})


def objective(
    method: Method, batch: Batch, role: str = "policy", memory: Mapping[str, Any] | None = None, **stats: Any
) -> tuple[float, dict[str, list[float]]]:
    """J and dJ/dstatistic of a method on a batch and statistics written by hand, through credit and selection."""
    world = World(method, 0)
    world.ctx.memory = type(world.ctx.memory)(memory or {})
    ready = world.prepared(batch)
    table = {k: torch.tensor(list(v), dtype=torch.float64) for k, v in stats.items()}
    slopes = world.slopes(ready, table, role)
    return float(world.value(ready, table, role)), {k: g.tolist() for k, g in slopes.items()}


@dataclass(frozen=True)
class Worked:
    """A term with its values."""

    term: Term
    value: Tensor

    def total(self, batch: Batch) -> Tensor:
        """Its part of J."""
        return self.term.total(self.value, self.term.weights(batch))


def worked(occupant: Any, batch: Batch, ctx: Context | None = None, **stats: Any) -> dict[str, Worked]:
    """The terms that one occupant declares, with the values that it gives for them, by name and in their order."""
    ctx = Context() if ctx is None else ctx
    table = {k: x if isinstance(x, Tensor) else torch.tensor(list(x), dtype=torch.float64) for k, x in stats.items()}
    terms, values = occupant.terms(ctx, batch), occupant(ctx, batch, Stats(table))
    assert sorted(t.name for t in terms) == sorted(values)
    return {t.name: Worked(t, values[t.name]) for t in terms}


def column(x: Tensor) -> list[float]:
    return x.tolist()


def by_episode(values: Sequence[float], lengths: Sequence[int]) -> list[list[float]]:
    """A flat list of tokens, cut into answers."""
    out, at = [], 0
    for n in lengths:
        out.append(list(values[at : at + n]))
        at += n
    return out


def mean(x: Sequence[float]) -> float:
    return math.fsum(x) / len(x)


def sample_std(x: Sequence[float]) -> float:
    """With n − 1."""
    return math.sqrt(math.fsum((v - mean(x)) ** 2 for v in x) / (len(x) - 1))


FAILED = {"status": Status.ENV_ERROR}


def close(a: object, b: object, tol: float = 1e-12) -> None:
    assert a == pytest.approx(b, abs=tol, rel=0)


def group(rewards: Sequence[float | None], tokens: Any = 1, name: str = "g", first: int = 0) -> list[Episode]:
    lengths = [tokens] * len(rewards) if isinstance(tokens, int) else tokens
    return [answer(first + i, name, n, r) for i, (r, n) in enumerate(zip(rewards, lengths, strict=True))]


__all__ = [
    "FAILED",
    "Status",
    "Use",
    "Worked",
    "answer",
    "batch_of",
    "by_episode",
    "by_expert",
    "close",
    "column",
    "group",
    "mean",
    "objective",
    "sample_std",
    "worked",
]
