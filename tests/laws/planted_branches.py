"""Mistakes in the methods that go back to an episode, or branch off one; see `planted.py`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gruppo.data import Batch, Episode
from gruppo.methods import method
from gruppo.methods.arpo_agentic import SharedTurns
from gruppo.methods.arpo_replay import SuccessForFailure
from gruppo.methods.latr import LookaheadTree
from gruppo.methods.memact import SomeSegments
from gruppo.methods.spear import PAST, Recalibrated
from gruppo.methods.spiral import RoleBaseline
from gruppo.pieces.advantage import z_score
from gruppo.stages import Context, Method, Prompt
from gruppo.stages.credit import to_tokens


@dataclass(frozen=True)
class ComparesTheRemembered(Recalibrated):
    """Remembered episodes are measured by a baseline of 0 while nothing is known: they are always good."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        if ctx.memory.get(PAST) is not None:
            return super().__call__(ctx, batch)
        fresh = super().__call__(ctx, batch)["adv_N"]
        past = to_tokens(batch, torch.nan_to_num(batch.reward_E))["adv_N"]
        return {"adv_N": torch.where(batch.spread(batch.replayed_E, "E", "N"), past, fresh)}


@dataclass(frozen=True)
class NeverMindsTheSpread(SuccessForFailure):
    """A group of which most failed also gets a remembered success: its `spread_low` does nothing."""

    def failed(self, group: Sequence[Episode]) -> bool:
        return sum(e.score for e in group) / len(group) < self.mean_low


@dataclass(frozen=True)
class ComparesFailedLeaves(SharedTurns):
    """A leaf that failed is a leaf of reward 0."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return to_tokens(batch, z_score(torch.nan_to_num(batch.reward_E), batch.level("E", "G"), eps=self.eps))


@dataclass(frozen=True)
class InTheOrderOfTheBatch(RoleBaseline):
    """Episodes follow each other as they lie in the batch, which is no order in time."""

    def __call__(self, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return super().__call__(ctx, batch.with_columns(uid_E=torch.arange(batch.size("E"))))


@dataclass(frozen=True)
class TakesTheFirst(SomeSegments):
    """Of every group, the segments that lie first in the batch."""

    def drawn(self, ctx: Context, batch: Batch) -> Tensor:
        first, out = set[int](), torch.zeros(batch.size("S"))
        for s, e in enumerate(batch.episode_S.tolist()):
            if bool(batch.learn_E[e]) and int(batch.group_E[e]) not in first:
                first.add(int(batch.group_E[e]))
                out[s] = 1
        return out


@dataclass(frozen=True)
class AsInTheEnd(LookaheadTree):
    """The share of the tree is that of the last step from the first one on."""

    async def __call__(self, ctx: Context, prompts: Sequence[Prompt]) -> list[Episode]:
        return await replace(self, eta=replace(ctx, step=ctx.steps).at(self.eta))._as_it_is(ctx, prompts)

    _as_it_is = LookaheadTree.__call__


SPOILED: dict[str, tuple[str, Method]] = {
    "spear takes every remembered episode for good": (
        "equal_rewards",
        method("spear").but(credit=ComparesTheRemembered(), objective=method("spear").objective),
    ),
    "latr begins as it should end": ("schedules", method("latr").but(rollout=AsInTheEnd())),
    "memact takes the first segments": ("order", method("memact").but(select=(TakesTheFirst(),))),
    "spiral goes by the order of the batch": ("order", method("spiral").but(credit=InTheOrderOfTheBatch())),
    "arpo_agentic compares failed leaves": ("failures", method("arpo_agentic").but(credit=ComparesFailedLeaves())),
    "arpo_replay never minds the spread": ("fields_matter", method("arpo_replay").but(replay=NeverMindsTheSpread())),
}
