"""Mistakes in the methods that go back to an episode, or branch off one; see `planted.py`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gruppo.data import Batch
from gruppo.methods import method
from gruppo.methods.spear import PAST, Recalibrated
from gruppo.stages import Context, Method
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


SPOILED: dict[str, tuple[str, Method]] = {
    "spear takes every remembered episode for good": (
        "equal_rewards",
        method("spear").but(credit=ComparesTheRemembered(), objective=method("spear").objective),
    ),
}
