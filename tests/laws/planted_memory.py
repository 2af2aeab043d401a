"""Mistakes in ssb and pipo; see `planted.py`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gruppo.data import Batch, Episode
from gruppo.methods import method
from gruppo.methods.pipo import LookBack
from gruppo.methods.ssb import Selective
from gruppo.stages import Context, Memory, Method, StepRecord


@dataclass(frozen=True)
class DrawsEvenly(Selective):
    """A buffer that draws every answer alike: its `power` does nothing."""

    def get(self, ctx: Context, store: Sequence[Episode]) -> list[Episode]:
        count = round(self.share / (1 - self.share) * ctx.prompts * ctx.samples)
        return [store[i] for i in np.argsort([ctx.uniform("ssb", e.uid) for e in store])[:count]]


@dataclass(frozen=True)
class RemembersInTheUpdate(LookBack):
    """The mean of the batch goes into memory in the update: a step that is taken again would see itself."""

    def __call__(self, ctx: Context, learner: Any, batch: Batch) -> None:
        super().__call__(ctx, learner, batch)
        ctx.memory["batch_means"] = [*ctx.memory.get("batch_means", []), float(batch.reward_E.nanmean())]

    def observe(self, record: StepRecord, memory: Memory) -> None:
        """Nothing is left to do."""


SPOILED: dict[str, tuple[str, Method]] = {
    "ssb draws evenly": ("fields_matter", method("ssb").but(replay=DrawsEvenly())),
    "pipo remembers in the update": ("roles", method("pipo").but(update=RemembersInTheUpdate())),
}
RAISES = {"pipo remembers in the update"}
