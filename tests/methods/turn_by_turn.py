"""Episodes of several turns, written as a player of an environment writes them, and the credit of each turn."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from hand import mean, sample_std

from gruppo.data import Batch, Episode, Growing, Status, pack
from gruppo.stages import Context


class Step(NamedTuple):
    """A turn: where it begins, what it was paid, and how many tokens it wrote."""

    state: str = ""
    reward: float | None = None
    tokens: int = 1
    action: str = ""
    agent: str = "policy"
    extra: float | None = None  # a second component of its reward


def played(
    uid: int,
    steps: Sequence[Step],
    reward: float | None = None,
    group: str = "g",
    status: Status = Status.OK,
    *,
    apart: bool = False,
    **fields: Any,
) -> Episode:
    """`reward`: of the episode itself. `apart`: a context of its own for every turn."""
    made = Growing(uid, f"task of {group}", group, **fields)
    made.begin(np.array([1, 2]))
    for i, step in enumerate(steps):
        if i and apart:
            made.begin(np.array([1, 2]))
        elif i:
            made.observe(np.array([7]))
        paid = {"task": step.reward, "extra": step.extra}
        paid = {name: r for name, r in paid.items() if r is not None}
        ids, logp = np.full(step.tokens, 5), np.full(step.tokens, -1.0, np.float32)
        made.act(ids, logp, 0, state=step.state, action_key=step.action, agent=step.agent, reward=paid)
    return made.finish(status, reward={} if reward is None else {"task": reward})


def walk(uid: int, states: str, reward: float, group: str = "g", **fields: Any) -> Episode:
    """One turn in each of these states, a letter each; the reward comes with the last."""
    steps = [Step(s) for s in states]
    steps[-1] = steps[-1]._replace(reward=reward)
    return played(uid, steps, group=group, **fields)


def packed(episodes: Sequence[Episode], **columns: Sequence[float]) -> Batch:
    batch = pack(episodes, dtype=torch.float64)
    return batch.with_columns(**{k: torch.tensor(list(v), dtype=torch.float64) for k, v in columns.items()})


def by_turn(credit: Any, episodes: Sequence[Episode], **columns: Sequence[float]) -> list[list[float]]:
    """The advantage of every turn, episode by episode in the order of time; NaN for a turn without tokens.

    All tokens of a turn have the same.
    """
    batch = packed(episodes, **columns)
    adv_N = credit(Context(), batch)["adv_N"]
    low, high = (batch.gather(adv_N, "N", "K", how, fill=math.nan) for how in ("min", "max"))
    assert torch.equal(low.nan_to_num(9.0), high.nan_to_num(9.0))
    out: list[list[float]] = [[] for _ in episodes]
    for row in batch.time_order("K").tolist():
        out[int(batch.up("K", "E")[row])].append(float(low[row]))
    return out


def flat(credit: Any, episodes: Sequence[Episode]) -> list[float]:
    """`by_turn`, one episode after the other."""
    return [a for turns in by_turn(credit, episodes) for a in turns]


def z(x: Sequence[float], eps: float = 0.0) -> list[float]:
    """(x − mean) / (std + eps), std with n − 1."""
    return [(v - mean(x)) / (sample_std(x) + eps) for v in x]
