"""Placebos: what a method does, without its idea. They are occupants for the third arm of a claim.

placebo = "dapo method.select+=gruppo.lab.claims.placebo:RandomTokens method.select.random_tokens.share=0.95"
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gruppo.data import Batch, Episode
from gruppo.stages import Context, Occupant, Stats, setting


@dataclass(frozen=True)
class RandomTokens(Occupant):
    """Learn only from a random `share` of the policy's tokens.

    counted  dropped tokens stay in the denominators; else they do not
    """

    share: float = setting(0.2, low=0, high=1)
    counted: bool = False

    def tokens(self, ctx: Context, batch: Batch, stats: Stats) -> tuple[Tensor, Tensor]:
        kept_N = (ctx.uniform("placebo", batch.uid_N) < self.share) | ~batch.policy_N
        every_N, one_N = torch.ones_like(kept_N), torch.ones_like(batch.weight_N)
        return (every_N, kept_N.to(one_N.dtype)) if self.counted else (kept_N, one_N)


@dataclass(frozen=True)
class RandomReward(Occupant):
    """Component `random`, which replaces `task`: 1 with the chance `rate`, whatever the answer is."""

    rate: float = setting(0.5, low=0, high=1)
    replaces = ("task",)

    def __call__(self, ctx: Context, episodes: Sequence[Episode]) -> Mapping[str, Any]:
        return {"random": [float(ctx.uniform("placebo", e.uid) < self.rate) for e in episodes]}
