"""The first law: what credit says of rows that are learned from is a number. Without it no other law says anything."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gruppo.data import Batch, Episode
from gruppo.lab.laws.episodes import random_episodes
from gruppo.lab.laws.world import World
from gruppo.stages import Method, kind
from gruppo.stages.check import learnable_N


def finite(method: Method, seed: int) -> str:
    """The columns of credit are finite where they are learned from, and so is the gradient, whatever became of other
    episodes: one that failed has no reward, and a reward that is not known is NaN."""
    episodes = random_episodes(seed)
    found = _odd(method, seed, episodes)
    if not found:
        return ""
    judged = [e for e in episodes if e.status.judged]
    if _odd(method, seed, judged):
        why = "It is so although every episode has a reward"
        return f"{found}. {why}: is something divided by 0, such as the deviation of equal rewards or of one?"
    return (
        f"{found}. Without the episodes that have no reward (NaN), such as failed ones, it is finite: leave them out "
        'of statistics, as in batch.gather(batch.reward_E, "E", "G", "mean", where=batch.judged_E).'
    )


def _odd(method: Method, seed: int, episodes: Sequence[Episode]) -> str:
    """What is not finite, and in how many of the rows that are learned from."""
    world = World(method, seed)
    batch = world.prepared(world.packed(episodes))
    here = {"N": learnable_N(method, batch), "E": batch.learn_E}
    for name in sorted(method.credit.writes):
        rows = here.get(name.rpartition("_")[2])
        if rows is not None and (bad := _count(batch, name, rows)):
            return f"{name} of {kind(method.credit)} is not finite in {bad} of {int(rows.sum())} rows to learn from"
    broken = [role for role in world.learner.trained if not bool(torch.isfinite(world.grad(batch, role)).all())]
    return f"the gradient of {broken[0]} is not finite, although all columns of credit are" if broken else ""


def _count(batch: Batch, name: str, rows: Tensor) -> int:
    """Rows whose value is NaN or infinite."""
    column = batch.columns.get(name)
    if column is None or not column.is_floating_point():
        return 0
    return int((~torch.isfinite(column[rows])).view(int(rows.sum()), -1).any(1).sum())
