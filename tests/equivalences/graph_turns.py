"""Equivalences of methods that give credit to the turns of agents."""

import math
from dataclasses import dataclass

import torch
from sides import GRPO, Equivalence
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods import method
from gruppo.methods.gigpo import AnchorGroups
from gruppo.stages import Context, Occupant
from gruppo.stages.objective import ClippedSurrogate
from gruppo.stages.penalties import ReferenceKL

GIGPO = method("gigpo")


# The other sides, written by loops


def in_time(batch: Batch) -> list[list[int]]:
    """For every judged episode, its turns in the order of time."""
    out: dict[int, list[int]] = {}
    for k in sorted(range(batch.size("K")), key=lambda k: int(batch.turn_index_K[k])):
        e = int(batch.episode_S[batch.seq_K[k]])
        if bool(batch.judged_E[e]):
            out.setdefault(e, []).append(k)
    return list(out.values())


def episode_of(batch: Batch, k: int) -> int:
    return int(batch.episode_S[batch.seq_K[k]])


def returns_by_loops(batch: Batch, gamma: float) -> dict[int, float]:
    """{turn: its discounted return}; the reward of the episode itself comes with its last turn."""
    out: dict[int, float] = {}
    for turns in in_time(batch):
        ahead = float(torch.nan_to_num(batch.reward_EC[episode_of(batch, turns[0])]).sum())
        for i, k in enumerate(reversed(turns)):
            ahead = float(batch.reward_K[k]) + (gamma if i else 1.0) * ahead
            out[k] = ahead
    return out


def normalised(x: dict[int, float], parts: dict[object, list[int]], ddof: int, eps: float = 1e-6) -> dict[int, float]:
    out: dict[int, float] = {}
    for rows in parts.values():
        mine = [x[k] for k in rows]
        mean = math.fsum(mine) / len(mine)
        var = math.fsum((v - mean) ** 2 for v in mine) / max(len(mine) - ddof, 1)
        flat = len(mine) <= ddof or max(mine) - min(mine) < 1e-12
        out |= {k: 0.0 if flat else (x[k] - mean) / (math.sqrt(var) + eps) for k in rows}
    return out


def of_turns(batch: Batch, adv: dict[int, float]) -> dict[str, Tensor]:
    return {"adv_N": torch.tensor([adv.get(k, 0.0) for k in batch.turn_N.tolist()], dtype=torch.float64)}


@dataclass(frozen=True)
class AnchorsByLoops(Occupant):
    """z of R over the episodes of the group, plus z of the return over turns of the group with the same state."""

    writes = ("adv_N",)

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        episodes: dict[object, list[int]] = {}
        anchors: dict[object, list[int]] = {}
        for turns in in_time(batch):
            e = episode_of(batch, turns[0])
            group = int(batch.group_E[e])
            episodes.setdefault(group, []).append(e)
            for k in turns:
                anchors.setdefault((group, int(batch.state_K[k])), []).append(k)
        whole = normalised(dict(enumerate(batch.reward_E.tolist())), episodes, 1)
        step = normalised(returns_by_loops(batch, 0.95), anchors, 1)
        return of_turns(batch, {k: whole[episode_of(batch, k)] + a for k, a in step.items()})


GRAPH: list[Equivalence] = [
    Equivalence(
        "gigpo_without_steps_is_grpo",
        GIGPO.but(name="gigpo, ω = 0", credit=AnchorGroups(step_coef=0.0)),
        GRPO.but(
            name="grpo, mean over turns",
            objective=ClippedSurrogate(mean="turn"),
            penalties=ReferenceKL(kl_coef=0.01, mean="turn"),
        ),
        "GiGPO (arXiv:2505.10978) adds the advantage of a turn to that of GRPO.",
    ),
    Equivalence(
        "gigpo_by_loops",
        GIGPO,
        GIGPO.but(name="gigpo by loops", credit=AnchorsByLoops()),
        "The second advantage compares the turns of a task that begin in the same state.",
    ),
]
