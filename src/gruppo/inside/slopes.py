"""One optimiser step that another trainer takes by slopes: it is told dJ/dstatistic at every token, and nothing else.

J is computed once, from the statistics of all rows, and what is left to its workers is the sum of slope · statistic.
So nothing depends on how they cut a step, and an objective that couples rows is one like any other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.inside.answers import Told
from gruppo.inside.step import OneStep
from gruppo.stages.goal import Goal


@dataclass(frozen=True)
class Slopes:
    """What is known of an optimiser step before it is taken.

    value   J
    totals  the means of its terms without their coefficients
    of      {readout: {answer: one slope an id that the policy sampled}}
    """

    value: float
    totals: dict[str, float]
    of: dict[str, dict[int, Tensor]]


def slopes_of(goal: Goal, part: Batch, now: Told) -> Slopes:
    """dJ/dstatistic of a part of a batch, where the policy says `now`."""
    step, needs = OneStep(goal, part), goal.needs()
    step.begin({n.column: now.rows("policy", n.readout, part) for n in needs})
    uids: list[int] = part.uid_E[part.episode_S].tolist()
    sizes = [len(now.said[u]) for u in uids]
    found = {
        n.readout: dict(zip(uids, torch.split(step.slopes[n.column], sizes), strict=True))
        for n in needs
        if n.column in step.slopes
    }
    return Slopes(float(step.total.value.detach()), {k: float(v) for k, v in step.total.totals.items()}, found)


def filled(mine: Sequence[int], lengths: Sequence[int], multiple: int) -> list[int]:
    """These rows and the shortest others, which count 0, so that their number can be divided by `multiple`."""
    missing, own = -len(mine) % multiple, set(mine)
    others = sorted((i for i in range(len(lengths)) if i not in own), key=lambda i: lengths[i])
    if missing > len(others):
        raise ValueError(
            f"an optimiser step has {len(mine)} of {len(lengths)} rows, and its processes want a multiple of "
            f"{multiple}. Use fewer answers in a micro-batch, or a number of answers in a batch that this divides."
        )
    return [*mine, *others[:missing]]
